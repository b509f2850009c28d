# SPDX-License-Identifier: Apache-2.0
"""A start on packed weights that an earlier one kept: it packs nothing, its answers are the same to the bit,
and whatever else is found under their name is packed anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from random_models import RandomModel, random_model
from test_random_models import QUANTISED_MODELS, listed
from tiny_models import TINY_MODELS, save_gguf, save_hf

from headrace import LLM, SamplingParams, _native
from headrace.runner.backends.cpu import CpuBackend, load_cpu_backend
from headrace.runner.packing import KeptPacking
from headrace.weights.checkpoint import Checkpoint
from headrace.weights.open import open_checkpoint
from headrace.weights.packed.folder import PackedFolder

COMMAND = [sys.executable, "-m", "headrace.cli.main"]
GIB = 2**30
LENGTHS = [30, 5]
STEPS = [{0: 20, 1: 5}, {0: 9}, {0: 1}]


@pytest.fixture
def folder(tmp_path: Path) -> PackedFolder:
    return PackedFolder(tmp_path / "packed", GIB)


@pytest.fixture
def num_packed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each matrix that is packed while a test runs."""
    packed: list[int] = []
    pack = _native.pack

    def counted(gguf_id: int, data: np.ndarray, rows: int, columns: int, team: _native.Team) -> object:
        packed.append(rows)
        return pack(gguf_id, data, rows, columns, team)

    monkeypatch.setattr(_native, "pack", counted)
    return packed


def load(checkpoint: Checkpoint, packed: PackedFolder | None, kernels: str = "auto") -> CpuBackend:
    """With what is to be kept on the disk."""
    backend = load_cpu_backend(
        checkpoint,
        num_threads=2,
        max_model_len=256,
        kv_cache_bytes=8 << 20,
        kernels=kernels,
        packed=packed,
    )
    if backend.keeping is not None:
        backend.keeping.finish()
    return backend


def answers(checkpoint: Checkpoint, packed: PackedFolder | None, kernels: str = "auto") -> object:
    return listed(load(checkpoint, packed, kernels), LENGTHS, STEPS)


def kept(folder: PackedFolder) -> Path:
    (file,) = folder.path.iterdir()
    return file


def on_disk(model: RandomModel, file: Path) -> RandomModel:
    """As if its tensors were that file's."""
    file.write_text("weights")
    tensors = {name: replace(tensor, file=file) for name, tensor in model.tensors.items()}
    return replace(model, tensors=tensors)


@pytest.mark.parametrize("name", TINY_MODELS)
@pytest.mark.parametrize("save", [save_gguf, save_hf])
def test_the_second_start_packs_nothing(
    name: str, save: object, folder: PackedFolder, tmp_path: Path, num_packed: list[int]
) -> None:
    path = save_gguf(name, tmp_path / "m.gguf") if save is save_gguf else save_hf(name, tmp_path / "m")
    plain = answers(open_checkpoint(path), None)
    num_matrices = len(num_packed)
    assert answers(open_checkpoint(path), folder) == plain
    assert len(num_packed) == 2 * num_matrices
    before = kept(folder).stat()
    assert answers(open_checkpoint(path), folder) == plain
    assert len(num_packed) == 2 * num_matrices
    assert kept(folder).stat().st_ino == before.st_ino, "not written again"


@pytest.mark.parametrize("kernels", _native.kernel_tables())
@pytest.mark.parametrize("name", QUANTISED_MODELS)
def test_every_format(
    name: str, kernels: str, folder: PackedFolder, tmp_path: Path, num_packed: list[int]
) -> None:
    model = on_disk(random_model(**QUANTISED_MODELS[name]), tmp_path / "m")  # type: ignore[arg-type]
    plain = answers(model, None, kernels)
    load(model, folder, "reference")
    num_packed.clear()
    assert answers(model, folder, kernels) == plain, "whatever table it was packed for"
    assert num_packed == []


def test_the_bytes_read_by_a_token_are_counted(folder: PackedFolder, tmp_path: Path) -> None:
    model = on_disk(random_model("llama"), tmp_path / "m")
    loads = [load(model, packed) for packed in (None, folder, folder)]
    assert len({backend.weight_bytes_per_token for backend in loads}) == 1


def test_another_model_of_that_name(folder: PackedFolder, tmp_path: Path, num_packed: list[int]) -> None:
    first = random_model("llama", matrices="Q8_0")
    second = random_model("llama", matrices="Q8_0", seed=1)
    load(on_disk(first, tmp_path / "m"), folder)
    plain = answers(second, None)
    num_packed.clear()
    assert answers(on_disk(second, tmp_path / "m"), folder) == plain
    assert num_packed
    assert len(list(folder.path.iterdir())) == 2


def test_another_layout(
    folder: PackedFolder, tmp_path: Path, num_packed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = on_disk(random_model("llama", matrices="Q8_0"), tmp_path / "m")
    load(model, folder)
    num_packed.clear()
    monkeypatch.setattr(_native, "PACKED_LAYOUT", _native.PACKED_LAYOUT + 1)
    load(model, folder)
    assert num_packed


@pytest.mark.parametrize("damage", ["cut", "empty", "bit", "weights of another size", "gone"])
def test_damage(damage: str, folder: PackedFolder, tmp_path: Path, num_packed: list[int]) -> None:
    model = on_disk(random_model("llama", matrices="Q8_0"), tmp_path / "m")
    plain = answers(model, folder)
    file = kept(folder)
    whole = bytearray(file.read_bytes())
    if damage == "cut":
        file.write_bytes(whole[:-4096])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "bit":
        whole[100] ^= 1
        file.write_bytes(whole)
    elif damage == "gone":
        file.unlink()
    else:  # a whole file, but of what no writer of ours leaves
        found = folder.find(file.stem)
        assert folder.keep(file.stem, [t._replace(data=t.data[:-64]) for t in found.values()], lambda: False)
    num_packed.clear()
    assert answers(model, folder) == plain
    assert num_packed
    num_packed.clear()
    assert answers(model, folder) == plain
    assert num_packed == []


def test_one_matrix_missing(folder: PackedFolder, tmp_path: Path, num_packed: list[int]) -> None:
    model = on_disk(random_model("llama"), tmp_path / "m")
    plain = answers(model, folder)
    name = kept(folder).stem
    folder.keep(name, list(folder.find(name).values())[1:], lambda: False)
    num_packed.clear()
    assert answers(model, folder) == plain
    assert len(num_packed) == 1
    assert answers(model, folder) == plain
    assert len(num_packed) == 1


def test_a_file_written_while_it_was_read(
    folder: PackedFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = on_disk(random_model("llama"), tmp_path / "m")
    matrix = KeptPacking.matrix

    def written_now(*args: object) -> object:
        (tmp_path / "m").write_text("other weights")
        return matrix(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(KeptPacking, "matrix", written_now)
    load(model, folder)
    assert not folder.path.exists()


def test_weights_of_no_file(folder: PackedFolder) -> None:
    load(random_model("llama"), folder)
    assert not folder.path.exists()


def test_a_folder_that_cannot_be(
    tmp_path: Path, num_packed: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    model = on_disk(random_model("llama"), tmp_path / "m")
    plain = answers(model, None)
    folder = PackedFolder(tmp_path / "m" / "packed", GIB)
    assert answers(model, folder) == plain
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


# ---- native ----


def test_packed_bytes_that_cannot_be() -> None:
    data = np.zeros(4096 + 64, dtype=np.uint8)
    data = data[-data.ctypes.data % 64 :]
    good = _native.packed_before(2, data[:320], 9, 32, 0.5)
    assert (good.num_bytes, good.kind, good.multiplier) == (320, 0, 0.5)
    for gguf_id, part, rows, columns, multiplier in (
        (2, data[:319], 9, 32, 1.0),
        (2, data[:384], 9, 32, 1.0),
        (2, data[:320], 9, 31, 1.0),
        (2, data[:320], 9, 64, 1.0),
        (2, data[:320], 0, 32, 1.0),
        (2, data[:320], -9, -32, 1.0),
        (2, data[1:321], 9, 32, 1.0),
        (99, data[:320], 9, 32, 1.0),
        (2, data[:320], 9, 32, float("nan")),
        (2, data[:320], 9, 32, 0.0),
    ):
        with pytest.raises(ValueError, match=r"bytes|tensor type|multiplier"):
            _native.packed_before(gguf_id, part, rows, columns, multiplier)


def test_a_matrix_keeps_the_bytes_it_views(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\7" * 320)
    matrix = _native.packed_before(2, np.memmap(tmp_path / "x", np.uint8, "r"), 9, 32, 1.0)
    assert (matrix.data == 7).all()
    view = matrix.data
    del matrix
    assert (view == 7).all()
    assert not view.flags.writeable


# ---- as users start it ----


def test_llm(
    smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_packed: list[int]
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HEADRACE_PACKED_CACHE_BYTES")
    params = SamplingParams(max_tokens=8, temperature=0)
    texts, counts = [], []
    for packed_cache in (False, True, True):
        num_packed.clear()
        with LLM(str(smollm2_path), max_model_len=256, packed_cache=packed_cache) as llm:
            texts.append(llm.generate("The capital of France is", params)[0].outputs[0].text)
            keeping = llm.model.engine._backend.keeping  # type: ignore[attr-defined]
        assert (keeping is not None) == (len(counts) == 1)
        if keeping is not None:
            keeping.finish()
        counts.append(len(num_packed))
    assert len(set(texts)) == 1
    assert counts[0] == counts[1] > 0
    assert counts[2] == 0
    monkeypatch.setenv("HEADRACE_PACKED_CACHE_BYTES", "0")
    with LLM(str(smollm2_path), max_model_len=256):
        assert len(num_packed) == counts[0]


def test_commands(smollm2_path: Path, tmp_path: Path) -> None:
    environment = dict(os.environ) | {"HEADRACE_HOME": str(tmp_path / "home")}
    del environment["HEADRACE_PACKED_CACHE_BYTES"]
    prompt = ("-p", "The capital of France is", "--max-tokens", "4", "--temperature", "0")

    def start(*options: str) -> subprocess.Popen[str]:
        command = [*COMMAND, "run", str(smollm2_path), "--raw", *prompt, *options]
        piped = subprocess.PIPE
        return subprocess.Popen(command, env=environment, stdout=piped, stderr=piped, text=True)

    def said(process: subprocess.Popen[str]) -> str:
        out, errors = process.communicate(timeout=100)
        assert (process.returncode, errors) == (0, "")
        return out

    plain = said(start("--no-packed-cache"))
    assert not (tmp_path / "home" / "packed").exists()
    both = [start(), start()]
    assert [said(process) for process in both] == [plain, plain], "two first starts at once"
    folder = PackedFolder(tmp_path / "home" / "packed", GIB)
    number = kept(folder).stat().st_ino
    assert said(start()) == plain
    assert kept(folder).stat().st_ino == number


def test_a_server_that_is_interrupted_leaves_whole_files_or_none(smollm2_path: Path, tmp_path: Path) -> None:
    environment = dict(os.environ) | {"HEADRACE_HOME": str(tmp_path / "home")}
    del environment["HEADRACE_PACKED_CACHE_BYTES"]
    command = [*COMMAND, "serve", str(smollm2_path), "--port", "0"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        assert "http" in server.stdout.readline()
        server.send_signal(signal.SIGINT)
        errors = server.stderr.read()
        assert server.wait(60) in (0, 130)
    assert "Traceback" not in errors
    assert kept(PackedFolder(tmp_path / "home" / "packed", GIB)).suffix == ".packed"

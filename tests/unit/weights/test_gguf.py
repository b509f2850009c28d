# SPDX-License-Identifier: Apache-2.0
"""Good GGUF files read back as what was written, by our own builder and by the gguf package."""

from __future__ import annotations

from pathlib import Path

import gguf
import gguf_builder as built
import numpy as np
import pytest

from headrace.core.errors import ModelFileError
from headrace.weights.formats import BY_GGUF_ID, FORMATS
from headrace.weights.gguf import open_gguf
from headrace.weights.open import open_checkpoint
from headrace.weights.string_array import StringArray

SCALARS = {
    "u8": (built.U8, 200),
    "i8": (built.I8, -100),
    "u16": (built.U16, 60000),
    "i16": (built.I16, -30000),
    "u32": (built.U32, 4_000_000_000),
    "i32": (built.I32, -2_000_000_000),
    "u64": (built.U64, 2**64 - 1),
    "i64": (built.I64, -(2**63)),
    "f32": (built.F32, 0.15625),
    "f64": (built.F64, 0.1),
    "yes": (built.BOOL, True),
    "no": (built.BOOL, False),
    "text": (built.STRING, "Grüße, 世界 🫠"),
    "empty": (built.STRING, ""),
}


@pytest.mark.parametrize("version", [2, 3])
def test_scalars(tmp_path: Path, version: int) -> None:
    path = tmp_path / "scalars.gguf"
    pairs = [(key, built.scalar(kind, value)) for key, (kind, value) in SCALARS.items()]
    path.write_bytes(built.build(pairs, [], version=version))
    checkpoint = open_gguf(path)
    assert checkpoint.version == version
    expected = {key: value for key, (_, value) in SCALARS.items()}
    assert dict(checkpoint.metadata) == expected
    assert {k: type(v) for k, v in checkpoint.metadata.items()} == {k: type(v) for k, v in expected.items()}


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (built.U8, "u1"),
        (built.I8, "i1"),
        (built.U16, "u2"),
        (built.I16, "i2"),
        (built.U32, "u4"),
        (built.I32, "i4"),
        (built.U64, "u8"),
        (built.I64, "i8"),
        (built.F32, "f4"),
        (built.F64, "f8"),
        (built.BOOL, "?"),
    ],
)
@pytest.mark.parametrize("count", [0, 1, 5])
def test_numeric_arrays(tmp_path: Path, kind: int, dtype: str, count: int) -> None:
    items = [index % 2 for index in range(count)]
    path = tmp_path / "array.gguf"
    path.write_bytes(built.build([("k", built.array(kind, items)), ("after", built.scalar(built.U8, 7))], []))
    metadata = open_gguf(path).metadata
    assert metadata["k"].dtype == np.dtype(dtype)
    assert metadata["k"].tolist() == items
    assert not metadata["k"].flags.writeable
    assert metadata["after"] == 7


def strings_of(kind: str) -> list[str]:
    generator = np.random.default_rng(5)
    lengths = {
        "none": [],
        "one": [3],
        "one empty": [0],
        "short": generator.integers(1, 20, 3000),
        "up to 255": generator.integers(1, 256, 2000),
        "around 256": generator.integers(250, 262, 600),
        "some long": np.where(generator.random(3000) < 0.002, 70_000, generator.integers(1, 9, 3000)),
        "some empty": np.where(generator.random(3000) < 0.01, 0, generator.integers(1, 9, 3000)),
        "all empty": [0] * 2000,
        "length 256 and up": generator.choice([256, 512, 65536], 100),
    }[kind]
    return ["".join(chr(97 + (place + length) % 26) for place in range(length)) for length in lengths]


@pytest.mark.parametrize(
    "kind",
    [
        "none",
        "one",
        "one empty",
        "short",
        "up to 255",
        "around 256",
        "some long",
        "some empty",
        "all empty",
        "length 256 and up",
    ],
)
def test_string_arrays(tmp_path: Path, kind: str) -> None:
    expected = strings_of(kind)
    path = tmp_path / "strings.gguf"
    pairs = [("k", built.array(built.STRING, expected)), ("after", built.scalar(built.U8, 7))]
    path.write_bytes(built.build(pairs, [], alignment=1))
    metadata = open_gguf(path).metadata
    strings = metadata["k"]
    assert isinstance(strings, StringArray)
    assert strings.to_list() == expected
    assert list(strings) == expected
    assert len(strings) == len(expected)
    assert metadata["after"] == 7


def test_strings_that_look_like_lengths(tmp_path: Path) -> None:
    """Texts full of zero bytes and small numbers must not lead the reader astray."""
    generator = np.random.default_rng(11)
    expected = [
        generator.choice([0, 0, 0, 0, 0, 0, 1, 8, 16], size=generator.integers(0, 40))
        .astype(np.uint8)
        .tobytes()
        for _ in range(5000)
    ]
    path = tmp_path / "strings.gguf"
    path.write_bytes(built.build([("k", built.array(built.STRING, expected))], [], alignment=1))
    strings = open_gguf(path).metadata["k"]
    assert [strings.raw(index) for index in range(len(strings))] == expected


def test_string_array_is_a_sequence(tmp_path: Path) -> None:
    path = tmp_path / "strings.gguf"
    path.write_bytes(built.build([("k", built.array(built.STRING, ["a", "b", b"\xff", "d"]))], []))
    strings = open_gguf(path).metadata["k"]
    assert (strings[0], strings[-1], strings[0:2]) == ("a", "d", ["a", "b"])
    assert strings.raw(2) == b"\xff"
    assert strings.raw(-2) == b"\xff"
    for index in (4, -5):
        with pytest.raises(IndexError):
            strings[index]
    for read in (lambda: strings[2], strings.to_list):
        with pytest.raises(ModelFileError, match="k: string 2 is not valid UTF-8"):
            read()


@pytest.mark.parametrize("alignment", [8, 32, 64, 4096])
def test_tensors_of_every_format(tmp_path: Path, alignment: int) -> None:
    generator = np.random.default_rng(alignment)
    tensors = []
    for row in FORMATS:
        dims = [row.qblock_size * 2, 3]
        data = generator.integers(0, 256, row.num_bytes(dims[0] * 3), np.uint8).tobytes()
        tensors.append(built.Tensor(f"{row.name}.weight", dims, row.gguf_id, data))
    path = tmp_path / "formats.gguf"
    pairs = [("general.alignment", built.scalar(built.U32, alignment))]
    path.write_bytes(built.build(pairs, tensors, alignment=alignment))
    checkpoint = open_checkpoint(path)
    assert list(checkpoint.tensors) == [tensor.name for tensor in tensors]
    for tensor in tensors:
        stored = checkpoint.tensors[tensor.name]
        assert stored.name == tensor.name
        assert stored.shape == (3, tensor.dims[0])
        assert stored.format is BY_GGUF_ID[tensor.type_id]
        assert stored.data.tobytes() == tensor.data
        assert not stored.data.flags.writeable
        assert stored.file == path


def test_four_dimensions_and_one(tmp_path: Path) -> None:
    path = tmp_path / "dims.gguf"
    tensors = [
        built.Tensor("four", [2, 3, 4, 5], built.TYPE_F32, bytes(480)),
        built.Tensor("one", [7], built.TYPE_F16, bytes(14)),
    ]
    path.write_bytes(built.build([], tensors))
    found = open_gguf(path).tensors
    assert found["four"].shape == (5, 4, 3, 2)
    assert found["one"].shape == (7,)


def test_file_by_the_gguf_package(tmp_path: Path) -> None:
    path = tmp_path / "package.gguf"
    generator = np.random.default_rng(2)
    tokens = [f"token {index} é" for index in range(1000)]
    scores = generator.normal(size=1000).astype(np.float32)
    dense = generator.normal(size=(6, 64)).astype(np.float32)
    quantised = gguf.quants.quantize(dense, gguf.GGMLQuantizationType.Q8_0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{{ messages }}")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores.tolist())
    writer.add_tensor("dense.weight", dense)
    writer.add_tensor("half.weight", dense.astype(np.float16))
    writer.add_tensor("quant.weight", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    checkpoint = open_gguf(path)
    metadata = checkpoint.metadata
    assert checkpoint.version == 3
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.block_count"] == 4
    assert metadata["llama.attention.layer_norm_rms_epsilon"] == np.float32(1e-5)
    assert metadata["tokenizer.ggml.add_bos_token"] is True
    assert metadata["tokenizer.chat_template"] == "{{ messages }}"
    assert metadata["tokenizer.ggml.tokens"].to_list() == tokens
    assert np.array_equal(metadata["tokenizer.ggml.scores"], scores)
    found = checkpoint.tensors
    assert found["dense.weight"].data.tobytes() == dense.tobytes()
    assert found["half.weight"].data.tobytes() == dense.astype(np.float16).tobytes()
    assert found["quant.weight"].data.tobytes() == quantised.tobytes()
    assert {name: (tensor.shape, tensor.format.name) for name, tensor in found.items()} == {
        "dense.weight": ((6, 64), "F32"),
        "half.weight": ((6, 64), "F16"),
        "quant.weight": ((6, 64), "Q8_0"),
    }

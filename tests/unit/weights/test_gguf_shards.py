# SPDX-License-Identifier: Apache-2.0
"""Models in several GGUF files: opened by the first, refused where the set does not fit together."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf_builder import I32, STRING, TYPE_F32, U16, Tensor, build, scalar

from headrace.core.errors import ModelFileError
from headrace.weights.open import open_checkpoint


def write_shards(folder: Path, names: list[list[str]], **changes: int) -> list[Path]:
    """One file for each list of tensor names. `changes`: count, total, or no_1 for shard 1's number."""
    paths = []
    for number, tensor_names in enumerate(names):
        pairs = [
            ("split.no", scalar(U16, changes.get(f"no_{number}", number))),
            ("split.count", scalar(U16, changes.get(f"count_{number}", len(names)))),
            ("split.tensors.count", scalar(I32, changes.get("total", sum(map(len, names))))),
        ]
        if number == 0:
            pairs.append(("general.architecture", scalar(STRING, "llama")))
        tensors = [Tensor(name, [4], TYPE_F32, name.encode().ljust(16)) for name in tensor_names]
        path = folder / f"m-{number + 1:05}-of-{len(names):05}.gguf"
        path.write_bytes(build(pairs, tensors))
        paths.append(path)
    return paths


def test_opened_by_the_first(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [[], ["a", "b"], ["c"]])
    checkpoint = open_checkpoint(paths[0])
    assert checkpoint.metadata["general.architecture"] == "llama"
    assert {name: tensor.data.tobytes().strip() for name, tensor in checkpoint.tensors.items()} == {
        "a": b"a",
        "b": b"b",
        "c": b"c",
    }
    assert checkpoint.tensors["c"].file == paths[2]


def refused(path: Path) -> ModelFileError:
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(path)
    return caught.value


def test_opened_by_another(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [["a"], ["b"]])
    error = refused(paths[1])
    assert error.field == "split.no"
    assert "open m-00001-of-00002.gguf" in str(error)


def test_a_shard_is_missing(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [["a"], ["b"], ["c"]])
    paths[2].unlink()
    error = refused(paths[0])
    assert error.field == "split.count"
    assert "m-00003-of-00003.gguf" in str(error)


def test_a_shard_is_cut_short(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [["a"], ["b"]])
    paths[1].write_bytes(paths[1].read_bytes()[:-1])
    error = refused(paths[0])
    assert (error.path, error.field) == (str(paths[1]), "tensor b")


def test_a_shard_of_another_place_or_model(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [["a"], ["b"]], no_1=0)
    assert (refused(paths[0]).field, refused(paths[0]).path) == ("split.no", str(paths[1]))
    paths = write_shards(tmp_path, [["a"], ["b"]], count_1=3)
    assert (refused(paths[0]).field, refused(paths[0]).path) == ("split.count", str(paths[1]))


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [["a", "b"], ["b"]])
    error = refused(paths[0])
    assert (error.path, error.field) == (str(paths[1]), "tensor b")
    assert "stands in m-00001-of-00002.gguf too" in str(error)


def test_tensors_are_missing_from_all_shards(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [["a"], ["b"]], total=3)
    error = refused(paths[0])
    assert error.field == "split.tensors.count"
    assert "says 3 tensors, the files hold 2" in str(error)


def test_renamed_first_shard(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [["a"], ["b"]])
    error = refused(paths[0].rename(tmp_path / "model.gguf"))
    assert error.field == "split.count"
    assert "-00001-of-00002.gguf" in str(error)

# SPDX-License-Identifier: Apache-2.0
"""safetensors files: good ones as the safetensors package wrote them, hostile ones refused by field."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from folder_builder import LLAMA, entry, float_file
from folder_builder import safetensors as build
from hostile import MAX_PEAK_BYTES, Outcome, open_all
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import ModelFileError
from headrace.weights.safetensors import open_safetensors


def test_file_by_the_safetensors_package(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    expected = {
        "whole": generator.normal(size=(3, 4)).astype(np.float32),
        "half": generator.normal(size=(5,)).astype(np.float16),
        "empty": np.zeros((0, 4), np.float32),
        "single": np.array(2.5, np.float32),
    }
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(expected, path, metadata={"format": "pt"})
    found = open_safetensors(path).tensors
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].name == name
        assert found[name].shape == values.shape
        assert found[name].format.name == {"float32": "F32", "float16": "F16"}[str(values.dtype)]
        assert found[name].data.tobytes() == values.tobytes()
        assert not found[name].data.flags.writeable


def test_bf16(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(build({"w": entry("BF16", [2, 2], 0, 8)}, b"abcdefgh"))
    stored = open_safetensors(path).tensors["w"]
    assert stored.format.name == "BF16"
    assert stored.data.tobytes() == b"abcdefgh"


def test_other_dtypes_come_as_errors(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {"w": np.ones((2, 2), np.float32), "ids": np.arange(3), "mask": np.ones(5, np.bool_)}
    safetensors.numpy.save_file(tensors, path)
    content = open_safetensors(path)
    assert content.tensors.keys() == {"w"}
    assert content.unsupported.keys() == {"ids", "mask"}
    error = content.unsupported["ids"]
    assert error.field == "tensor ids"
    assert "has dtype 'I64', which is not supported; supported: F32, F16, BF16" in str(error)


DATA = bytes(64)
TOP, ALL = 1 << 63, (1 << 64) - 1
W = "tensor w"
NORM = "model.norm.weight"
GOOD = build({"v": entry("F32", [4], 0, 16), "w": entry("F32", [4, 3], 16, 64)}, DATA)


def one(*arguments: Any) -> bytes:
    return build({"w": entry(*arguments)}, DATA)


# name -> the file, the field that the error names, words in its message
CASES: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", "file", "is empty"),
    "seven bytes": (bytes(7), "header length", "7 bytes, too few"),
    "length 0": (build({}, DATA, 0), "header length", "claims 0 bytes"),
    "length 1": (build({}, DATA, 1), "header length", "claims 1 bytes"),
    "length 7": (build({"w": entry("F32", [16], 0, 64)}, DATA, 7), "header", "not valid JSON"),
    "length of the file": (build({}, DATA, 74), "header length", "claims 74 bytes where 66 follow"),
    "length 2^63": (build({}, DATA, TOP), "header length", f"claims {TOP} bytes"),
    "length 2^64-1": (build({}, DATA, ALL), "header length", f"claims {ALL} bytes"),
    "GGUF": (b"GGUF" + bytes(100), "header length", "not a safetensors file"),
    "a list": (build([1, 2], DATA), "header", "does not start with"),
    "not JSON": (build(b'{"w": nonsense}', DATA), "header", "not valid JSON"),
    "cut JSON": (build(b'{"w": {"dtype"', DATA), "header", "not valid JSON"),
    "two objects": (build(b"{}{}", DATA), "header", "not valid JSON"),
    "not UTF-8": (build(b'{"\xff\xfe": 1}', DATA), "header", "not valid UTF-8"),
    "nested 100000 deep": (build(b'{"w":' + b"[" * 100_000, DATA), "header", "nested too deeply"),
    "a name twice": (
        build(b'{"w": 1, "w": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}', DATA),
        "header",
        "'w' stands in it twice",
    ),
    "entry is a number": (build({"w": 5}, DATA), W, "not an object"),
    "no dtype": (build({"w": {"shape": [16], "data_offsets": [0, 64]}}, DATA), W, "dtype None"),
    "dtype F8_E4M3": (
        build({NORM: entry("F8_E4M3", [64], 0, 64)}, DATA),
        f"tensor {NORM}",
        "'F8_E4M3', which is not supported; supported: F32",
    ),
    "dtype I64": (build({NORM: entry("I64", [8], 0, 64)}, DATA), f"tensor {NORM}", "'I64'"),
    "I64 past the end": (one("I64", [8], 0, 128), W, "within the file's 64 bytes"),
    "I64 and a gap": (build({"w": entry("I64", [7], 8, 64)}, DATA), W, "leaves a gap before it"),
    "dtype is a list": (one(["F32"], [16], 0, 64), W, "dtype ['F32']"),
    "no shape": (build({"w": {"dtype": "F32", "data_offsets": [0, 64]}}, DATA), W, "shape is not"),
    "negative shape": (one("F32", [-4, -4], 0, 64), W, "shape is not a list of counts"),
    "shape of floats": (one("F32", [16.0], 0, 64), W, "shape is not a list of counts"),
    "shape of bools": (one("F32", [True, 16], 0, 64), W, "shape is not a list of counts"),
    "product over 2^64": (one("F32", [1 << 62, 16], 0, 64), W, "does not fit data_offsets"),
    "number of 5000 digits": (build(b'{"w": ' + b"9" * 5000 + b"}", DATA), "header", "not valid JSON"),
    "1000 dimensions": (one("F32", [1] * 1000, 0, 64), W, "1000 dimensions"),
    "shape too small": (one("F32", [15], 0, 64), W, "does not fit data_offsets"),
    "offset past the end": (one("F32", [32], 0, 128), W, "within the file's 64 bytes"),
    "offset 2^63": (one("F32", [16], TOP, TOP + 64), W, "within the file's 64 bytes"),
    "offset 2^64-1": (one("F32", [0], ALL, ALL), W, "within the file's 64 bytes"),
    "offset negative": (one("F32", [16], -64, 0), W, "data_offsets is not a list of counts"),
    "offsets swapped": (one("F32", [16], 64, 0), W, "do not lie within"),
    "three offsets": (
        build({"w": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64, 64]}}, DATA),
        W,
        "do not lie within",
    ),
    "overlap": (
        build({"v": entry("F32", [8], 0, 32), "w": entry("F32", [9], 28, 64)}, DATA),
        W,
        "overlaps the tensor before it",
    ),
    "gap": (build({"w": entry("F32", [15], 4, 64)}, DATA), W, "leaves a gap before it"),
    "bytes left over": (one("F32", [15], 0, 60), "data_offsets", "end at byte 60 of 64"),
    "cut": (GOOD[:-1], W, "within the file's 63 bytes"),
}


# As above, in place of the file: what the header starts with and how many spaces follow
SPACES: dict[str, tuple[bytes, int, str, str]] = {
    "200 MB of spaces": (b"", 200_000_000, "header length", "over the limit of 32000000"),
    "31 MB of spaces": (b"", 31_000_000, "header", "does not start with"),
    "31 MB of spaces in braces": (b"{", 31_000_000, "header", "not valid JSON"),
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Outcome], int]:
    folder = tmp_path_factory.mktemp("hostile")
    for name in CASES | SPACES:
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(LLAMA))
    for name, (content, _, _) in CASES.items():
        (folder / name / "model.safetensors").write_bytes(content)
    for name, (start, num_spaces, _, _) in SPACES.items():
        (folder / name / "model.safetensors").write_bytes(build(start + b" " * num_spaces, b""))
    return open_all(folder)


@pytest.mark.parametrize("name", CASES | SPACES)
def test_refused(name: str, opened: tuple[dict[str, Outcome], int]) -> None:
    field, words = (CASES | SPACES)[name][-2:]
    opened[0][name].assert_refused(field, words)


def test_memory_stays_small(opened: tuple[dict[str, Outcome], int]) -> None:
    assert opened[1] < MAX_PEAK_BYTES


def test_the_file_behind_the_cases_is_good(tmp_path: Path) -> None:
    path = tmp_path / "good.safetensors"
    path.write_bytes(GOOD)
    assert {name: stored.shape for name, stored in open_safetensors(path).tensors.items()} == {
        "v": (4,),
        "w": (4, 3),
    }


FUZZED = float_file({"a": np.ones((2, 3)), "b": np.ones(4)})


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.integers(0, len(FUZZED) - 1), st.integers(0, 255), max_size=6),
    st.integers(0, len(FUZZED)),
)
def test_fuzzed(changes: dict[int, int], size: int) -> None:
    content = bytearray(FUZZED)
    for place, byte in changes.items():
        content[place] = byte
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        path.write_bytes(content[:size])
        try:
            tensors = open_safetensors(path).tensors
        except ModelFileError:
            return
    assert all(tensor.data.size == 4 * tensor.num_elements for tensor in tensors.values())

# SPDX-License-Identifier: Apache-2.0
"""Broken and malicious GGUF files are refused at once, by name of the field, in little memory."""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from gguf_builder import (
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    TYPE_F32,
    TYPE_Q4_0,
    TYPE_Q4_K,
    U32,
    U64,
    Tensor,
    array,
    build,
    scalar,
    text,
)
from hostile import MAX_PEAK_BYTES, Outcome, open_all

from headrace.core.errors import ModelFileError
from headrace.weights.gguf import open_gguf
from headrace.weights.string_array import MAX_STRINGS

TOP, ALL = 1 << 63, (1 << 64) - 1
ARCH = ("general.architecture", scalar(STRING, "llama"))
GOOD = Tensor("a.weight", [8, 4], TYPE_F32, bytes(128))
NEXT = Tensor("b.weight", [8, 4], TYPE_F32, bytes(128))


def with_pair(key: str | bytes, value: bytes) -> bytes:
    return build([ARCH, (key, value)], [GOOD])


def with_tensor(**changes: object) -> bytes:
    return build([ARCH], [replace(GOOD, **changes)])  # type: ignore[arg-type]


def with_alignment(value: int, value_type: int = U32) -> bytes:
    return with_pair("general.alignment", scalar(value_type, value))


WHOLE = build([ARCH], [GOOD, NEXT])
A = "tensor a.weight"
B = "tensor b.weight"
ALIGN = "general.alignment"

# name -> the file, the field that the error names, words in its message
CASES: dict[str, tuple[bytes, str, str]] = {
    # K1: not a GGUF file, or not all of it
    "empty": (b"", "file", "is empty"),
    "three bytes": (b"GGU", "magic", "the file has 3 more"),
    "wrong magic": (b"GGML" + WHOLE[4:], "magic", "not a GGUF file"),
    "zip": (b"PK\3\4" + bytes(100), "magic", "not a GGUF file"),
    "cut at 10 percent": (WHOLE[: len(WHOLE) // 10], "tensor_count", "bytes"),
    "cut at half": (WHOLE[: len(WHOLE) // 2], A, "leave the file"),
    "cut at 99.9 percent": (WHOLE[:-1], B, "leave the file"),
    "cut before the data": (build([ARCH], [replace(GOOD, data=b"")]), A, "leave the file"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version", "big-endian"),
    "version 1": (build([ARCH], [GOOD], version=1), "version", "1 is not supported"),
    "version 4": (build([ARCH], [GOOD], version=4), "version", "4 is not supported"),
    "version 2^32-1": (build([ARCH], [GOOD], version=2**32 - 1), "version", "not supported"),
    # K3: absurd counts and lengths
    "tensor count 2^63": (build([], [], num_tensors=TOP) + bytes(19), "tensor_count", "hold fewer"),
    "pair count 2^63": (build([], [], num_pairs=TOP) + bytes(19), "metadata_kv_count", "hold fewer"),
    "pair count 2^64-1": (build([ARCH], [GOOD], num_pairs=ALL), "metadata_kv_count", "hold fewer"),
    "one pair too many": (build([ARCH], [], num_pairs=2), "metadata key 1", "0 bytes"),
    "one tensor too many": (build([ARCH], [GOOD], num_tensors=2), "name of tensor 1", "0 bytes"),
    "key length 2^63": (
        build([], [], num_pairs=1, alignment=1) + text(b"k" * 16, TOP),
        "metadata key 0",
        str(TOP),
    ),
    "key length 0": (with_pair("", scalar(U32, 1)), "metadata key 1", "has 0 bytes of text"),
    "string length 2^63": (with_pair("s", struct.pack("<I", STRING) + text("x", TOP)), "s", str(TOP)),
    "string length 2^64-1": (with_pair("s", struct.pack("<I", STRING) + text("x", ALL)), "s", str(ALL)),
    "array of 2^63 strings": (with_pair("s", array(STRING, ["x"], TOP)), "s", f"claims {TOP} strings"),
    "array of 2^63 bytes": (with_pair("s", array(0, [1], TOP)), "s", str(TOP)),
    "array of 2^63 doubles": (with_pair("s", array(12, [1], TOP)), "s", "needs"),
    "array of 2^61 doubles": (with_pair("s", array(12, [1], 1 << 61)), "s", "needs"),
    "array item of length 2^63": (
        with_pair("s", struct.pack("<IIQ", ARRAY, STRING, 2) + text("x") + text("y", TOP)),
        "s",
        "string 1 of 9223372036854775808 bytes leaves the file",
    ),
    "array item past the end": (
        build([("s", struct.pack("<IIQ", ARRAY, STRING, 2) + text("x") + text("y", 9))], [], alignment=1),
        "s",
        "leaves the file",
    ),
    "last of many array items past the end": (
        build([("s", array(STRING, ["abc"] * 300))], [], alignment=1)[:-1],
        "s",
        "string 299, its last, leaves the file",
    ),
    # Metadata that is not what the format allows
    "array of arrays": (
        with_pair("s", struct.pack("<IIQ", ARRAY, ARRAY, 1)),
        "s",
        "array of arrays, which is not supported; supported: arrays of numbers, bools and strings",
    ),
    # F4
    "merges as pairs": (
        with_pair(
            "tokenizer.ggml.merges",
            struct.pack("<IIQ", ARRAY, ARRAY, 1) + struct.pack("<IQ", STRING, 2) + text("a") + text("b"),
        ),
        "tokenizer.ggml.merges",
        'a merge is one string, "left right"; convert the model again',
    ),
    "nested 1000 deep": (
        with_pair("s", struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * 1000),
        "s",
        "array of arrays",
    ),
    "unknown value type": (with_pair("s", struct.pack("<I", 13)), "s", "unknown value type 13"),
    "unknown item type": (with_pair("s", struct.pack("<IIQ", ARRAY, 99, 1)), "s", "unknown value type 99"),
    "bool of 2": (with_pair("s", struct.pack("<IB", BOOL, 2)), "s", "bool of value 2"),
    "array of bools of 2": (with_pair("s", array(BOOL, [0, 1, 2])), "s", "other than 0 and 1"),
    "key twice": (with_pair(*ARCH), ARCH[0], "twice"),
    "key not UTF-8": (with_pair(b"k\xff", scalar(U32, 1)), "metadata key 1", "not valid UTF-8"),
    "string not UTF-8": (with_pair("s", struct.pack("<I", STRING) + text(b"\xc3")), "s", "not valid UTF-8"),
    "newline in a key": (with_pair("a\nb", struct.pack("<I", 13)), "'a\\nb'", "unknown value type"),
    # K4: alignment and offsets
    "alignment 0": (with_alignment(0), ALIGN, "is 0; it must be a power of two"),
    "alignment 1": (with_alignment(1), ALIGN, "is 1;"),
    "alignment 3": (with_alignment(3), ALIGN, "is 3;"),
    "alignment 24": (with_alignment(24), ALIGN, "is 24;"),
    "alignment 2^30": (with_alignment(1 << 30), ALIGN, f"is {1 << 30};"),
    "alignment 2^63": (with_alignment(TOP, U64), ALIGN, f"is {TOP};"),
    "alignment -32": (with_alignment(-32, I32), ALIGN, "is -32;"),
    "alignment as float": (with_pair(ALIGN, scalar(F32, 32.0)), ALIGN, "not an integer"),
    "alignment as string": (with_pair(ALIGN, scalar(STRING, "32")), ALIGN, "not an integer"),
    "alignment as bool": (with_pair(ALIGN, scalar(BOOL, 1)), ALIGN, "not an integer"),
    "offset unaligned": (with_tensor(offset=8), A, "offset 8 is not a multiple of the alignment 32"),
    "offset past the end": (with_tensor(offset=1 << 20), A, "leave the file"),
    "offset 2^63": (with_tensor(offset=TOP), A, "leave the file"),
    "offset 2^64-1": (with_tensor(offset=ALL), A, "not a multiple"),
    "offset 2^64-32": (with_tensor(offset=ALL - 31), A, "leave the file"),
    "tensors overlap": (build([ARCH], [GOOD, replace(NEXT, offset=96)]), B, "lies within tensor a.weight"),
    "tensors in one place": (
        build([ARCH], [NEXT, replace(GOOD, offset=0)]),
        A,
        "lies within tensor b.weight",
    ),
    # Tensors that cannot be
    "tensor twice": (build([ARCH], [GOOD, GOOD]), A, "twice"),
    "tensor name not UTF-8": (with_tensor(name=b"\xff"), "name of tensor 0", "not valid UTF-8"),
    "tensor name of 2^63 bytes": (
        build([ARCH], [], num_tensors=1, alignment=1) + text("x" * 64, TOP),
        "name of tensor 0",
        "has 9223372036854775808 bytes of text",
    ),
    "0 dimensions": (with_tensor(dims=[]), A, "0 dimensions"),
    "5 dimensions": (with_tensor(dims=[2] * 5), A, "5 dimensions"),
    "2^32-1 dimensions": (with_tensor(num_dims=2**32 - 1), A, "dimensions"),
    "a dimension of 0": (with_tensor(dims=[8, 0]), A, "dimension of 0"),
    "product over 2^64": (with_tensor(dims=[1 << 32, 1 << 32, 4]), A, "the whole file has"),
    "product that wraps to 0": (with_tensor(dims=[1 << 32, 1 << 32]), A, "the whole file has"),
    "dimension 2^64-1": (with_tensor(dims=[ALL]), A, "the whole file has"),
    "row not whole qblocks": (with_tensor(dims=[16, 2], type_id=TYPE_Q4_0), A, "Q4_0 qblocks of 32"),
    "row not whole superblocks": (with_tensor(dims=[128, 2], type_id=TYPE_Q4_K), A, "Q4_K qblocks of 256"),
    "type 16": (with_tensor(type_id=16), A, "IQ2_XXS, which is not supported; supported: F32, F16, BF16"),
    "type 34": (with_tensor(type_id=34), A, "TQ1_0"),
    "type 28": (with_tensor(type_id=28), A, "F64"),
    "type 4": (with_tensor(type_id=4), A, "Q4_2 (removed from ggml)"),
    "type 999": (with_tensor(type_id=999), A, "number 999, unknown to ggml"),
    "type 2^32-1": (with_tensor(type_id=2**32 - 1), A, "unknown to ggml"),
    # Shards that are none
    "split without its name": (
        with_pair("split.count", scalar(U32, 3)),
        "split.count",
        "should be named like x-00001-of-00003.gguf",
    ),
    "split count as string": (with_pair("split.count", scalar(STRING, "3")), "split.count", "not a count"),
    "tensor count of the split": (
        with_pair("split.tensors.count", scalar(I32, 7)),
        "split.tensors.count",
        "says 7 tensors, the files hold 1",
    ),
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Outcome], int]:
    folder = tmp_path_factory.mktemp("hostile")
    for name, (content, _, _) in CASES.items():
        (folder / name.replace("/", " ")).write_bytes(content)
    (folder / "good").write_bytes(WHOLE)
    return open_all(folder)


def test_the_file_behind_the_cases_is_good(opened: tuple[dict[str, Outcome], int]) -> None:
    assert opened[0]["good"].kind == "opened"


@pytest.mark.parametrize("name", CASES)
def test_refused(name: str, opened: tuple[dict[str, Outcome], int]) -> None:
    _, field, words = CASES[name]
    opened[0][name].assert_refused(field, words)


def test_memory_stays_small(opened: tuple[dict[str, Outcome], int]) -> None:
    assert opened[1] < MAX_PEAK_BYTES


def test_sparse_giant_is_refused_at_once(tmp_path: Path) -> None:
    """The bytes for a billion strings are there, all zero; still no gigabytes are spent on them."""
    head = build([("s", array(STRING, [], 1 << 30))], [], alignment=1)
    path = tmp_path / "giant.gguf"
    with path.open("wb") as file:
        file.write(head)
        file.truncate(16 << 30)
    # Under this limit it is the map that fails; test_count_limit has the other refusal.
    outcomes, peak_bytes = open_all(tmp_path)
    assert outcomes["giant.gguf"].kind == "ModelFileError"
    assert outcomes["giant.gguf"].seconds < 1
    assert peak_bytes < MAX_PEAK_BYTES


def test_count_limit(tmp_path: Path) -> None:
    path = tmp_path / "many.gguf"
    with path.open("wb") as file:
        file.write(build([("s", array(STRING, [], MAX_STRINGS + 1))], [], alignment=1))
        file.truncate(8 * MAX_STRINGS + 1000)
    outcomes, peak_bytes = open_all(tmp_path)
    outcomes["many.gguf"].assert_refused("s", f"where at most {MAX_STRINGS} can be")
    assert peak_bytes < MAX_PEAK_BYTES


def test_half_a_million_empty_strings(tmp_path: Path) -> None:
    """What defeats the quick way over strings must not cost more than going one by one."""
    count = 1 << 19
    (tmp_path / "zeros.gguf").write_bytes(build([("s", array(STRING, [], count))], []) + bytes(8 * count))
    outcomes, _ = open_all(tmp_path)
    assert outcomes["zeros.gguf"].kind == "opened"
    assert outcomes["zeros.gguf"].seconds < 4


def test_directory_fifo_and_absent_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name, words in ((".", "is a directory"), ("fifo", "not a regular file"), ("absent", "No such file")):
        with pytest.raises(ModelFileError, match=words) as caught:
            open_gguf(tmp_path / name)
        assert caught.value.field == "file"

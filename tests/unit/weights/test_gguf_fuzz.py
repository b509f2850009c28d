# SPDX-License-Identifier: Apache-2.0
"""Whatever happens to a good file, opening it works or raises ModelFileError; what opens can be read."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from gguf_builder import (
    BOOL,
    F32,
    I32,
    STRING,
    TYPE_F32,
    TYPE_Q4_0,
    TYPE_Q4_K,
    U32,
    Tensor,
    array,
    build,
    scalar,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from open_all import read_everything

from headrace.core.errors import ModelFileError
from headrace.weights.gguf import open_gguf

GOOD = build(
    [
        ("general.architecture", scalar(STRING, "llama")),
        ("general.alignment", scalar(U32, 32)),
        ("llama.block_count", scalar(U32, 2)),
        ("llama.eps", scalar(F32, 1e-5)),
        ("tokenizer.add_bos", scalar(BOOL, 1)),
        ("tokenizer.tokens", array(STRING, [f"t{index}" for index in range(20)])),
        ("tokenizer.types", array(I32, list(range(20)))),
    ],
    [
        Tensor("blk.0.a.weight", [32, 2], TYPE_Q4_0, bytes(range(36))),
        Tensor("blk.0.b.weight", [256], TYPE_Q4_K, bytes(144)),
        Tensor("blk.0.c.weight", [3, 2], TYPE_F32, bytes(24)),
    ],
)


def opens(content: bytes) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        path.write_bytes(content)
        try:
            read_everything(open_gguf(path))
        except ModelFileError as error:
            message = str(error)
        else:
            return True
    assert "\n" not in message
    return False


def test_the_file_itself_opens() -> None:
    assert opens(GOOD)


def test_cut_at_any_byte(tmp_path: Path) -> None:
    for size in range(len(GOOD)):
        path = tmp_path / "cut.gguf"
        path.unlink(missing_ok=True)
        path.write_bytes(GOOD[:size])
        with pytest.raises(ModelFileError):
            open_gguf(path)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.integers(0, len(GOOD) - 1), st.integers(0, 255), min_size=1, max_size=8))
def test_bytes_changed(changes: dict[int, int]) -> None:
    content = bytearray(GOOD)
    for place, byte in changes.items():
        content[place] = byte
    opens(bytes(content))


INTERESTING = [0, 1, 255, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 32]


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(GOOD) - 8), st.sampled_from(INTERESTING), st.integers(0, len(GOOD)))
def test_numbers_planted(place: int, number: int, size: int) -> None:
    content = bytearray(GOOD)
    content[place : place + 8] = number.to_bytes(8, "little")
    opens(bytes(content))
    opens(bytes(content[:size]))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_noise_behind_a_good_start(noise: bytes) -> None:
    opens(GOOD[:24] + noise)

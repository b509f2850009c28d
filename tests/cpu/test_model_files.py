# SPDX-License-Identifier: Apache-2.0
"""The two real files against independent readings: a plain walk over the header with struct, and the
gguf package's dequantisation."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as oracle

from headrace.kernels.ref.dequantize import dequantize
from headrace.weights.open import open_checkpoint

# Figures of the files themselves. A quarter of a second is ten times what opening takes alone.
FILES = {
    "smollm2": ("smollm2_path", 272, 134_515_008, {"Q4_1", "Q8_0", "F32"}, 49152),
    "gemma3": ("gemma3_path", 236, 268_098_176, {"Q4_K", "Q5_0", "Q6_K", "Q8_0", "F32"}, 262144),
}
MAX_OPEN_S = 0.25


@pytest.fixture(params=FILES, scope="module")
def model(request: pytest.FixtureRequest) -> tuple[Path, tuple[int, int, set[str], int]]:
    fixture, *figures = FILES[request.param]
    return request.getfixturevalue(fixture), tuple(figures)


def walk_strings(content: bytes, key: str) -> list[bytes]:
    """The array of strings behind `key`, length by length."""
    position = content.index(struct.pack("<Q", len(key)) + key.encode() + struct.pack("<II", 9, 8))
    position += 8 + len(key) + 8
    (count,) = struct.unpack_from("<Q", content, position)
    position += 8
    strings = []
    for _ in range(count):
        (length,) = struct.unpack_from("<Q", content, position)
        strings.append(content[position + 8 : position + 8 + length])
        position += 8 + length
    return strings


def test_figures(model: tuple[Path, tuple[int, int, set[str], int]]) -> None:
    path, (num_tensors, num_parameters, formats, vocab_size) = model
    checkpoint = open_checkpoint(path)
    tensors = checkpoint.tensors.values()
    assert len(tensors) == num_tensors
    assert sum(tensor.num_elements for tensor in tensors) == num_parameters
    assert {tensor.format.name for tensor in tensors} == formats
    assert checkpoint.tensors["token_embd.weight"].shape[0] == vocab_size


def test_every_token_and_merge(model: tuple[Path, tuple[int, int, set[str], int]]) -> None:
    path, figures = model
    with path.open("rb") as file:
        content = file.read(20_000_000)
    metadata = open_checkpoint(path).metadata
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges"):
        if key not in metadata:
            continue
        strings = metadata[key]
        expected = walk_strings(content, key)
        assert [strings.raw(index) for index in range(len(strings))] == expected
        assert strings.to_list() == [text.decode() for text in expected]
    assert len(metadata["tokenizer.ggml.tokens"]) == figures[-1]
    assert metadata["tokenizer.ggml.token_type"].shape == (figures[-1],)


def test_opens_quickly(model: tuple[Path, tuple[int, int, set[str], int]]) -> None:
    path, _ = model
    seconds = []
    for _ in range(5):
        begin = time.process_time()
        open_checkpoint(path)
        seconds.append(time.process_time() - begin)
    assert min(seconds) < MAX_OPEN_S


def test_dequantised_like_the_gguf_package(model: tuple[Path, tuple[int, int, set[str], int]]) -> None:
    """The first 500 rows of up to two tensors a format, bit for bit."""
    path, (_, _, formats, _) = model
    seen = dict.fromkeys(formats, 0)
    for tensor in open_checkpoint(path).tensors.values():
        seen[tensor.format.name] += 1
        if seen[tensor.format.name] > 2:
            continue
        num_elements = min(tensor.num_elements, 500 * tensor.shape[-1])
        data = tensor.data[: tensor.format.num_bytes(num_elements)]
        expected = oracle(data, GGMLQuantizationType(tensor.format.gguf_id)).reshape(-1).astype(np.float32)
        result = dequantize(tensor.format, data, num_elements)
        assert np.array_equal(result.view(np.uint32), expected.view(np.uint32)), tensor.name
    assert all(seen.values())

# SPDX-License-Identifier: Apache-2.0
"""Every format of the table against the gguf package, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as oracle

from headrace.kernels.ref.dequantize import DEQUANTIZERS, dequantize
from headrace.weights.formats import BY_NAME, FORMATS, QuantFormat

# Where float16 scales stand in a qblock; elsewhere every byte is as good as another.
HALF_SCALES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "IQ4_NL": (0,), "IQ4_XS": (0,),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip
NUM_ELEMENTS = 256 * 40


def random_blocks(row: QuantFormat, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    if row.is_float:
        width = {"F32": np.float32, "F16": np.float16}.get(row.name)
        values = generator.normal(size=NUM_ELEMENTS).astype(width or np.float32)
        whole = values.view(np.uint8)
        return whole if width else whole.reshape(-1, 4)[:, 2:].reshape(-1).copy()  # BF16: the upper halves
    blocks = generator.integers(0, 256, (NUM_ELEMENTS // row.qblock_size, row.qblock_bytes), np.uint8)
    for at in HALF_SCALES.get(row.name, ()):
        scales = generator.normal(scale=0.05, size=len(blocks)).astype("<f2")
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    if row.name == "MXFP4":
        blocks[:, 0] = blocks[:, 0].clip(max=250)  # beyond, values leave float32
    return blocks.reshape(-1)


def test_every_format_has_a_function() -> None:
    assert set(DEQUANTIZERS) == set(BY_NAME)


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.name)
def test_random_blocks_match_gguf_package(row: QuantFormat) -> None:
    data = random_blocks(row, seed=row.gguf_id)
    expected = oracle(data, GGMLQuantizationType(row.gguf_id)).reshape(-1)
    result = dequantize(row, data, NUM_ELEMENTS)
    assert result.dtype == np.float32
    assert np.isfinite(result).all()
    assert np.array_equal(result.view(np.uint32), expected.astype(np.float32).view(np.uint32))


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.name)
def test_sizes_agree_with_gguf_package(row: QuantFormat) -> None:
    from gguf import GGML_QUANT_SIZES

    assert GGML_QUANT_SIZES[GGMLQuantizationType(row.gguf_id)] == (row.qblock_size, row.qblock_bytes)


def test_unaligned_view() -> None:
    """Tensors may start at any byte of a map that numpy considers unaligned."""
    row = BY_NAME["F16"]
    data = random_blocks(row, seed=1)
    shifted = np.concatenate([np.zeros(1, np.uint8), data])[1:]
    assert np.array_equal(dequantize(row, shifted, NUM_ELEMENTS), dequantize(row, data, NUM_ELEMENTS))


def test_wrong_size_is_refused() -> None:
    with pytest.raises(ValueError, match="are not 32 values of Q4_0"):
        dequantize(BY_NAME["Q4_0"], np.zeros(17, np.uint8), 32)
    with pytest.raises(ValueError, match="are not 16 values of Q4_0"):
        dequantize(BY_NAME["Q4_0"], np.zeros(9, np.uint8), 16)

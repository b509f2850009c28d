# SPDX-License-Identifier: Apache-2.0
"""The native unpacking of every tensor format against the `gguf` package and numpy's own float16."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from headrace._native import testing
from headrace.kernels.ref import dequantize as numpy_twin
from headrace.weights.formats import FORMATS, QuantFormat
from headrace.weights.open import open_checkpoint

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

QUANTISED = [row for row in FORMATS if not row.is_float]
NUM_VALUES = 256 * 300

# group, has_min, code_min, code_max: the promises of native/include/unpack.h
SHAPES = {
    "Q4_0": (32, False, -8, 7),
    "Q4_1": (32, True, 0, 15),
    "Q5_0": (32, False, -16, 15),
    "Q5_1": (32, True, 0, 31),
    "Q8_0": (32, False, -128, 127),
    "Q2_K": (16, True, 0, 3),
    "Q3_K": (16, False, -4, 3),
    "Q4_K": (32, True, 0, 15),
    "Q5_K": (32, True, 0, 31),
    "Q6_K": (16, False, -32, 31),
    "IQ4_NL": (32, False, -127, 113),
    "IQ4_XS": (32, False, -127, 113),
    "MXFP4": (32, False, -12, 12),
}


def random_bytes(row: QuantFormat, seed: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, row.num_bytes(NUM_VALUES), dtype=np.uint8)


def oracle(row: QuantFormat, data: Bytes) -> Floats:
    with np.errstate(all="ignore"):  # random bytes hold infinite and NaN scales too
        values = gguf.dequantize(data.reshape(1, -1), gguf.GGMLQuantizationType(row.gguf_id))
    return np.asarray(values, dtype=np.float32).reshape(-1)


def test_every_quantised_format_is_known() -> None:
    assert {row.name: testing.code_shape(row.gguf_id) for row in QUANTISED} == SHAPES


@pytest.mark.parametrize("gguf_id", [0, 1, 4, 15, 16, 30, 99, -1])
def test_other_types_have_no_codes(gguf_id: int) -> None:
    with pytest.raises(ValueError, match="not a quantised type"):
        testing.code_shape(gguf_id)


def test_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown type"):
        testing.dequantize(16, np.zeros(1024, np.uint8), 256)


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.name)
def test_dequantize_equals_gguf(row: QuantFormat) -> None:
    data = random_bytes(row, seed=row.gguf_id)
    want = data.view(np.float32) if row.name == "F32" else oracle(row, data)
    np.testing.assert_array_equal(testing.dequantize(row.gguf_id, data, NUM_VALUES), want)


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.name)
def test_dequantize_equals_numpy_twin(row: QuantFormat) -> None:
    data = random_bytes(row, seed=100 + row.gguf_id)
    with np.errstate(all="ignore"):
        want = numpy_twin.dequantize(row, data, NUM_VALUES).reshape(-1)
    np.testing.assert_array_equal(testing.dequantize(row.gguf_id, data, NUM_VALUES), want)


@pytest.mark.parametrize("row", QUANTISED, ids=lambda row: row.name)
def test_codes_scales_and_minima_make_the_values(row: QuantFormat) -> None:
    group, has_min, code_min, code_max = testing.code_shape(row.gguf_id)
    data = random_bytes(row, seed=200 + row.gguf_id)
    code, scale, minimum = testing.unpack(row.gguf_id, data, NUM_VALUES)
    assert code.min() == code_min
    assert code.max() == code_max
    assert has_min or not minimum.any()
    with np.errstate(all="ignore"):
        values = scale[:, None] * code.reshape(-1, group).astype(np.float32) + minimum[:, None]
    np.testing.assert_array_equal(values.reshape(-1), oracle(row, data))


def test_mxfp4_every_exponent() -> None:
    """Up to the largest whose values float32 holds; the first two have subnormal scales."""
    for exponent in range(253):
        data = np.array(
            [exponent] + [0x7F] * 16, dtype=np.uint8
        )  # -6 in each low nibble, +6 in each high one
        values = testing.dequantize(39, data, 32).astype(np.float64)
        assert set(values) == {-6.0 * 2.0 ** (exponent - 127), 6.0 * 2.0 ** (exponent - 127)}


@pytest.mark.parametrize("fixture", ["smollm2_path", "gemma3_path"])
def test_real_tensors(fixture: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(fixture)
    seen = set()
    for tensor in open_checkpoint(path).tensors.values():
        if tensor.format.is_float or tensor.format in seen:
            continue
        seen.add(tensor.format)
        num = min(tensor.num_elements, NUM_VALUES)
        data = np.array(tensor.data[: tensor.format.num_bytes(num)])
        got = testing.dequantize(tensor.format.gguf_id, data, num)
        np.testing.assert_array_equal(got, oracle(tensor.format, data))
    assert seen


def test_every_half_becomes_the_right_float() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    got = testing.halves_to_floats(halves)
    want = halves.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(got, want)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(got[numbers].view(np.uint32), want[numbers].view(np.uint32))  # signed zeros


def test_every_half_survives_the_round_trip() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    back = testing.floats_to_halves(testing.halves_to_floats(halves))
    numbers = ~np.isnan(halves.view(np.float16))
    np.testing.assert_array_equal(back[numbers], halves[numbers])
    assert np.isnan(back[~numbers].view(np.float16)).all()


def test_floats_round_to_the_nearest_even_half() -> None:
    """Every midpoint between neighbouring halves, the floats beside it, and random bit patterns."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    above = np.append(halves[1:], 65536.0)  # past the largest half: where the next would be
    midpoints = ((halves + above) / 2).astype(np.float32)
    assert (midpoints.astype(np.float64) == (halves + above) / 2).all()
    around = [np.nextafter(midpoints, np.float32(0)), midpoints, np.nextafter(midpoints, np.float32(np.inf))]
    random = np.random.default_rng(0).integers(0, 1 << 32, 1_000_000, dtype=np.uint32).view(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45], dtype=np.float32)
    floats = np.concatenate([*around, *(-part for part in around), random, special])
    with np.errstate(all="ignore"):
        want = floats.astype(np.float16)
    got = testing.floats_to_halves(floats)
    numbers = ~np.isnan(floats)
    np.testing.assert_array_equal(got[numbers], want.view(np.uint16)[numbers])
    assert np.isnan(got[~numbers].view(np.float16)).all()

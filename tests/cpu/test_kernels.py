# SPDX-License-Identifier: Apache-2.0
"""The native kernel tables: each against numpy, against one another, and against itself in other company."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from random_models import Bytes, random_bytes

from budgets import PRODUCT_FLOAT, PRODUCT_SCALES, PRODUCT_TABLES
from headrace import _native
from headrace.kernels.ref.dequantize import dequantize
from headrace.weights.formats import BY_NAME, FORMATS, QuantFormat

Floats = npt.NDArray[np.float32]

TABLES = _native.kernel_tables()
COLUMNS = 512
MOST_PACKED_BYTES = 1.12  # for one of the file


def random_weights(row: QuantFormat, rows: int, seed: int) -> Bytes:
    return random_bytes(row, rows * COLUMNS, np.random.default_rng(seed))


def quantised_input(x: Floats) -> Floats:
    """What a quantised product really multiplies: x in 8 bits by groups of 32."""
    groups = x.reshape(-1, 32)
    scale = np.abs(groups).max(axis=1, keepdims=True) / np.float32(127)
    safe = np.where(scale > 0, scale, np.float32(1))
    return (np.rint(groups / safe) * scale).reshape(x.shape).astype(np.float32)


def product(table: str, packed: _native.PackedMatrix, x: Floats, rows: int) -> Floats:
    y = np.full(x.shape[0] * rows, np.nan, dtype=np.float32)
    _native.testing.product(table, packed, np.ascontiguousarray(x).reshape(-1), y)
    return y.reshape(x.shape[0], rows)


@pytest.fixture(scope="module")
def team() -> _native.Team:
    return _native.Team(2)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.name)
@pytest.mark.parametrize("rows", [8, 37])
def test_product_against_numpy(row: QuantFormat, table: str, rows: int, team: _native.Team) -> None:
    data = random_weights(row, rows, seed=row.gguf_id)
    weights = dequantize(row, data, rows * COLUMNS).reshape(rows, COLUMNS).astype(np.float64)
    x = np.random.default_rng(1).normal(size=(7, COLUMNS)).astype(np.float32)
    got = product(table, _native.pack(row.gguf_id, data, rows, COLUMNS, team), x, rows)
    fed = x if row.is_float else quantised_input(x)
    want = fed.astype(np.float64) @ weights.T
    # An error is judged against the size of what was summed: |x| . |w|.
    size = np.abs(fed).astype(np.float64) @ np.abs(weights).T
    budget = PRODUCT_FLOAT if row.name in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0") else PRODUCT_SCALES
    assert (np.abs(got - want) / size).max() < budget


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.name)
@pytest.mark.parametrize("num_tokens", [9, 16, 35])
def test_tables_agree(row: QuantFormat, num_tokens: int, team: _native.Team) -> None:
    rows = 43
    packed = _native.pack(row.gguf_id, random_weights(row, rows, seed=7), rows, COLUMNS, team)
    x = np.random.default_rng(2).normal(size=(num_tokens, COLUMNS)).astype(np.float32)
    results = {table: product(table, packed, x, rows) for table in TABLES}
    spread = np.abs(results["reference"]).max()
    for result in results.values():
        assert np.abs(result - results["reference"]).max() < PRODUCT_TABLES * spread
    fast = [results[table] for table in TABLES if table != "reference"]
    for result in fast[1:]:  # to the bit: those of one kind of processor sum in the same order
        np.testing.assert_array_equal(result, fast[0])


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.name)
def test_a_token_alone_and_in_company(row: QuantFormat, table: str, team: _native.Team) -> None:
    rows, num_tokens = 24, 29
    packed = _native.pack(row.gguf_id, random_weights(row, rows, seed=3), rows, COLUMNS, team)
    x = np.random.default_rng(4).normal(size=(num_tokens, COLUMNS)).astype(np.float32)
    together = product(table, packed, x, rows)
    alone = np.concatenate([product(table, packed, x[t : t + 1], rows) for t in range(num_tokens)])
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 21, 31])
def test_what_is_no_number_shows_in_quantised_products(
    place: int, value: float, table: str, team: _native.Team
) -> None:
    for name in ("Q4_1", "Q5_0", "Q5_K", "Q6_K", "Q8_0", "IQ4_XS"):
        packed = _native.pack(
            BY_NAME[name].gguf_id, random_weights(BY_NAME[name], 8, seed=12), 8, COLUMNS, team
        )
        x = np.ones((18, COLUMNS), dtype=np.float32)
        x[0, 64 + place] = value
        got = product(table, packed, x, 8)
        assert not np.isfinite(got[0]).any()
        assert np.isfinite(got[1:]).all()


@pytest.mark.parametrize("table", TABLES)
def test_the_smallest_inputs_are_zero(table: str, team: _native.Team) -> None:
    row = BY_NAME["Q8_0"]
    packed = _native.pack(row.gguf_id, random_weights(row, 8, seed=13), 8, COLUMNS, team)
    for size in (1e-45, 1e-38, 1e-31):
        x = np.full((1, COLUMNS), size, dtype=np.float32)
        np.testing.assert_array_equal(product(table, packed, x, 8), 0)


@pytest.mark.parametrize("threads", [1, 3])
def test_packing_does_not_depend_on_threads(threads: int) -> None:
    row = BY_NAME["Q6_K"]
    data = random_weights(row, 64, seed=9)
    x = np.random.default_rng(5).normal(size=(1, COLUMNS)).astype(np.float32)
    one, other = (_native.pack(row.gguf_id, data, 64, COLUMNS, _native.Team(n)) for n in (2, threads))
    np.testing.assert_array_equal(product("reference", one, x, 64), product("reference", other, x, 64))


@pytest.mark.parametrize(
    "name", ["Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "IQ4_XS"]
)
def test_packed_weights_are_hardly_more_than_the_file_s(name: str, team: _native.Team) -> None:
    row = BY_NAME[name]
    data = random_weights(row, 16, seed=14)
    assert _native.pack(row.gguf_id, data, 16, COLUMNS, team).num_bytes <= MOST_PACKED_BYTES * data.size


def test_extreme_scales_survive_packing(team: _native.Team) -> None:
    """Products of two stored scales may lie outside float16; one power of two a matrix brings them in."""
    row = BY_NAME["MXFP4"]
    for exponent in (20, 127, 230):
        data = random_weights(row, 8, seed=11)
        data.reshape(-1, row.qblock_bytes)[:, 0] = exponent
        weights = dequantize(row, data, 8 * COLUMNS).reshape(8, COLUMNS).astype(np.float64)
        x = np.random.default_rng(6).normal(size=(1, COLUMNS)).astype(np.float32)
        got = product(TABLES[0], _native.pack(row.gguf_id, data, 8, COLUMNS, team), x, 8)
        want = quantised_input(x).astype(np.float64) @ weights.T
        assert np.abs(got - want).max() < PRODUCT_SCALES * np.abs(want).max()


def test_bad_shapes_are_refused(team: _native.Team) -> None:
    for gguf_id, columns in ((8, 33), (12, 128)):  # Q8_0, Q4_K
        with pytest.raises(ValueError, match="whole qblocks"):
            _native.pack(gguf_id, np.zeros(144 * 5, np.uint8), 5, columns, team)
    with pytest.raises(ValueError, match="unknown tensor type"):
        _native.pack(99, np.zeros(64, np.uint8), 2, 32, team)
    for rows, num_bytes in ((3, 10), (3, 8), (0, 0), (-1, 4)):
        with pytest.raises(ValueError, match=f"{rows} rows of 1 columns are not {num_bytes} bytes"):
            _native.pack(0, np.zeros(num_bytes, np.uint8), rows, 1, team)

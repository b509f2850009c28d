# SPDX-License-Identifier: Apache-2.0
"""The numpy ops against their formulas, written a second time for one number at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headrace.kernels.ref import ops

RNG = np.random.default_rng(3)


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def test_rms_norm() -> None:
    x, weight = floats(2, 8), floats(8)
    for row, out in zip(x, ops.rms_norm(x, weight, 0.1), strict=True):
        root = math.sqrt(sum(float(v) ** 2 for v in row) / 8 + 0.1)
        assert out == pytest.approx([float(v) / root * float(w) for v, w in zip(row, weight, strict=True)])


def test_head_norm_keeps_heads_apart() -> None:
    x, weight = floats(3, 12), floats(4)
    normed = ops.head_norm(x, weight, 3, 1e-6)
    for head in range(3):
        part = slice(4 * head, 4 * head + 4)
        assert np.allclose(normed[:, part], ops.rms_norm(x[:, part], weight, 1e-6))


@pytest.mark.parametrize("interleaved", [True, False])
def test_rope_turns_pairs_and_leaves_the_rest(interleaved: bool) -> None:
    x = floats(2, 2 * 6)  # two heads of six, of which four places turn
    frequencies = ops.rope_frequencies(4, 100.0, (1.0, 2.0), 3.0)
    assert frequencies == pytest.approx([1 / 3, 0.1 / 2 / 3])
    positions = np.array([0, 5])
    turned = ops.rope(x, positions, 2, frequencies, interleaved=interleaved, attention_factor=1.5)
    pairs = [(0, 1), (2, 3)] if interleaved else [(0, 2), (1, 3)]
    for token, head in np.ndindex(2, 2):
        before, after = x[token, 6 * head : 6 * head + 6], turned[token, 6 * head : 6 * head + 6]
        for (a, b), frequency in zip(pairs, frequencies, strict=True):
            turn = complex(before[a], before[b]) * 1.5 * np.exp(1j * float(positions[token] * frequency))
            assert (after[a], after[b]) == (pytest.approx(turn.real), pytest.approx(turn.imag))
        assert (after[4:] == before[4:]).all()


@pytest.mark.parametrize(("window", "cap"), [(None, None), (3, None), (1, None), (None, 2.0)])
def test_attention_reads_through_the_block_table(window: int | None, cap: float | None) -> None:
    """Seven places in blocks of two, four query heads on two KV heads, the last three tokens asked."""
    keys, values = np.full((2, 9, 2, 2, 4), np.nan, np.float32)
    block_ids, k, v, q = np.array([5, 0, 8, 3]), floats(7, 8), floats(7, 8), floats(3, 16)
    ops.write_kv(keys, values, k[:4], v[:4], block_ids, np.arange(4))
    ops.write_kv(keys, values, k[4:], v[4:], block_ids, np.arange(4, 7))
    positions = np.arange(4, 7)
    got = ops.attend(q, keys, values, block_ids, positions, num_heads=4, scale=0.5, window=window, cap=cap)
    for token, head in np.ndindex(3, 4):
        group = slice(4 * (head // 2), 4 * (head // 2) + 4)
        query = q[token, 4 * head : 4 * head + 4]
        first = 0 if window is None else int(positions[token]) - window + 1
        seen = range(first, int(positions[token]) + 1)
        scores = [0.5 * float(query @ k[place, group]) for place in seen]
        scores = scores if cap is None else [cap * math.tanh(score / cap) for score in scores]
        weights = np.exp(scores) / np.exp(scores).sum()
        expected = sum(weight * v[place, group] for weight, place in zip(weights, seen, strict=True))
        assert got[token, 4 * head : 4 * head + 4] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_activations_and_their_far_ends() -> None:
    x = np.array([-1e4, -3.0, -0.5, 0.0, 0.5, 3.0, 1e4], np.float32)
    silu = [value / (1 + math.exp(min(-value, 700))) for value in x.tolist()]
    gelu = [
        0.5 * value * (1 + math.tanh(math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)))
        for value in x.tolist()
    ]
    assert ops.silu(x) == pytest.approx(silu, rel=1e-5, abs=1e-6)
    assert ops.gelu_tanh(x) == pytest.approx(gelu, rel=1e-5, abs=1e-6)


def test_softcap_embed_linear() -> None:
    assert ops.softcap(np.float32([-1e9, 0, 1]), 2.0) == pytest.approx([-2, 0, 2 * math.tanh(0.5)])
    weight = floats(5, 3)
    assert (ops.embed(weight, np.array([4, 4, 0]), 2.0) == 2 * weight[[4, 4, 0]]).all()
    x, bias = floats(2, 3), floats(5)
    assert ops.linear(x, weight, bias) == pytest.approx(np.einsum("td,nd->tn", x, weight) + bias, rel=1e-4)

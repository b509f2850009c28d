# SPDX-License-Identifier: Apache-2.0
"""The definition of every op, in plain numpy float32: slow and right. Other kernels are tested against
these. Shapes in glossary letters; a step's T tokens lie row after row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


def embed(weight: Floats, tokens: Ints, scale: float) -> Floats:
    """weight (V, D), tokens (T,) -> (T, D)."""
    return np.asarray(weight[tokens] * np.float32(scale), dtype=np.float32)


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """x (..., D), weight (D,) -> (..., D). The mean is over the last axis."""
    mean_square = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32)
    return np.asarray(x / np.sqrt(mean_square + np.float32(eps)) * weight, dtype=np.float32)


def head_norm(x: Floats, weight: Floats, num_heads: int, eps: float) -> Floats:
    """x (T, H * K), weight (K,) -> (T, H * K): each head normalised by itself."""
    heads = x.reshape(len(x), num_heads, -1)
    return rms_norm(heads, weight, eps).reshape(x.shape)


def linear(x: Floats, weight: Floats, bias: Floats | None) -> Floats:
    """x (T, D), weight (N, D), bias (N,) -> (T, N)."""
    product = x @ weight.T
    return product if bias is None else product + bias


def rope_frequencies(
    dim: int, base: float, freq_factors: Sequence[float] | None, linear_scale: float
) -> Floats:
    """(dim/2,) radians that each pair turns by a token."""
    pairs = np.arange(0, dim, 2, dtype=np.float64) / dim
    factors = np.ones(dim // 2) if freq_factors is None else np.asarray(freq_factors, dtype=np.float64)
    return np.asarray(base**-pairs / factors / linear_scale, dtype=np.float32)


def rope(
    x: Floats,
    positions: Ints,
    num_heads: int,
    frequencies: Floats,
    *,
    interleaved: bool,
    attention_factor: float,
) -> Floats:
    """x (T, H * K), positions (T,), frequencies (dim/2,) -> (T, H * K). Places beyond dim stay."""
    num_pairs = len(frequencies)
    angles = positions[:, None].astype(np.float32) * frequencies  # (T, dim/2)
    cos = (np.cos(angles) * np.float32(attention_factor))[:, None, :]
    sin = (np.sin(angles) * np.float32(attention_factor))[:, None, :]
    heads = x.reshape(len(x), num_heads, -1)  # (T, H, K)
    if interleaved:
        first, second = slice(0, 2 * num_pairs, 2), slice(1, 2 * num_pairs, 2)
    else:
        first, second = slice(0, num_pairs), slice(num_pairs, 2 * num_pairs)
    a, b = heads[..., first], heads[..., second]
    turned = heads.copy()
    turned[..., first] = a * cos - b * sin
    turned[..., second] = b * cos + a * sin
    return turned.reshape(x.shape)


def write_kv(keys: Floats, values: Floats, k: Floats, v: Floats, block_ids: Ints, positions: Ints) -> None:
    """Store one row's new k, v (T, G * K) at its positions (T,) in a layer's keys, values
    (num_blocks, G, S, K), through the row's block_ids (B,)."""
    _, num_kv_heads, block_size, head_dim = keys.shape
    blocks, offsets = block_ids[positions // block_size], positions % block_size
    keys[blocks, :, offsets] = k.reshape(-1, num_kv_heads, head_dim)
    values[blocks, :, offsets] = v.reshape(-1, num_kv_heads, head_dim)


def attend(
    q: Floats,
    keys: Floats,
    values: Floats,
    block_ids: Ints,
    positions: Ints,
    *,
    num_heads: int,
    scale: float,
    window: int | None,
    cap: float | None,
) -> Floats:
    """One row: q (T, H * K) at positions (T,) over all places up to its own, found through block_ids (B,) in
    keys, values (num_blocks, G, S, K). Result (T, H * K). Query head h reads KV head h // (H / G)."""
    num_places = int(positions[-1]) + 1
    k = _gather(keys, block_ids, num_places)  # (G, P, K)
    v = _gather(values, block_ids, num_places)
    num_kv_heads, _, head_dim = k.shape
    grouped = q.reshape(len(q), num_kv_heads, num_heads // num_kv_heads, head_dim)  # (T, G, H/G, K)
    scores = np.einsum("tghk,gpk->ghtp", grouped, k, optimize=True) * np.float32(scale)
    if cap is not None:
        scores = softcap(scores, cap)
    scores = np.where(visible(positions, num_places, window), scores, np.float32(-np.inf))
    mixed = np.einsum("ghtp,gpk->tghk", softmax(scores), v, optimize=True)
    return np.ascontiguousarray(mixed).reshape(q.shape)


def visible(positions: Ints, num_places: int, window: int | None) -> npt.NDArray[np.bool_]:
    """(T, P): whether the token at positions[t] sees place p: itself and those before it, of which only the
    nearest window - 1 when there is a window."""
    distance = positions[:, None] - np.arange(num_places)
    seen = distance >= 0
    return seen if window is None else seen & (distance < window)


def softmax(scores: Floats) -> Floats:
    """Over the last axis."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True), dtype=np.float32)


def silu(x: Floats) -> Floats:
    """x * sigmoid(x), by tanh so that no exponential overflows."""
    return np.asarray(x * 0.5 * (1 + np.tanh(x * 0.5)), dtype=np.float32)


def gelu_tanh(x: Floats) -> Floats:
    """Hendrycks and Gimpel 2016, the tanh form."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return np.asarray(0.5 * x * (1 + np.tanh(inner)), dtype=np.float32)


ACTIVATIONS: Mapping[str, Callable[[Floats], Floats]] = {"silu": silu, "gelu_tanh": gelu_tanh}


def softcap(x: Floats, cap: float) -> Floats:
    """cap * tanh(x / cap)."""
    return np.asarray(cap * np.tanh(x / cap), dtype=np.float32)


def _gather(cache: Floats, block_ids: Ints, num_places: int) -> Floats:
    """The first num_places places of a row, in order: (num_blocks, G, S, K) -> (G, P, K)."""
    num_blocks = -(-num_places // cache.shape[2])
    picked = cache[block_ids[:num_blocks]]  # (B, G, S, K)
    places = picked.transpose(1, 0, 2, 3).reshape(cache.shape[1], -1, cache.shape[3])
    return places[:, :num_places]

# SPDX-License-Identifier: Apache-2.0
"""From stored bytes to float32, one function a format: the definition of every row of the formats
table. The layouts are ggml's; each function takes whole qblocks and knows nothing of files."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from headrace.weights.formats import QuantFormat

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

# The sixteen values that a 4-bit code of IQ4_NL and IQ4_XS stands for
IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
# Twice the values of an FP4 (E2M1) code; MXFP4 scales are halved to match
FP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def dequantize(stored: QuantFormat, data: Bytes, num_elements: int) -> Floats:
    """(num_elements,) float32 values of `data` (bytes,), stored one qblock after the other."""
    if num_elements % stored.qblock_size or data.size != stored.num_bytes(num_elements):
        raise ValueError(f"{data.size} bytes are not {num_elements} values of {stored.name}")
    blocks = np.ascontiguousarray(data).reshape(-1, stored.qblock_bytes)
    return DEQUANTIZERS[stored.name](blocks).reshape(num_elements)


# In all functions below: blocks (N, bytes of a qblock) uint8, result N * qblock_size float32 in order.


def _f32(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    codes = _nibbles(blocks[:, 6:]) | _bits(blocks[:, 2:6]) << 4
    return _half(blocks, 0) * (codes.astype(np.float32) - 16)


def _q5_1(blocks: Bytes) -> Floats:
    codes = _nibbles(blocks[:, 8:]) | _bits(blocks[:, 4:8]) << 4
    return _half(blocks, 0) * codes.astype(np.float32) + _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q2_k(blocks: Bytes) -> Floats:
    packed, codes, scale, min_scale = (
        blocks[:, :16],
        _pairs(blocks[:, 16:80]),
        _half(blocks, 80),
        _half(blocks, 82),
    )
    scales = scale * (packed & 15).astype(np.float32)  # (N, 16)
    mins = min_scale * (packed >> 4).astype(np.float32)
    return scales[:, :, None] * _grouped(codes, 16) - mins[:, :, None]


def _q3_k(blocks: Bytes) -> Floats:
    high, low, packed, scale = blocks[:, :32], _pairs(blocks[:, 32:96]), blocks[:, 96:108], _half(blocks, 108)
    # Bit b of the 32 mask bytes belongs to codes 32 * b and on; a clear bit takes 4 away.
    mask = (high[:, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1).reshape(-1, 256)
    codes = (low | mask << 2).astype(np.float32) - 4
    # Sixteen 6-bit scales: 4 low bits in bytes 0 to 7, 2 high bits in bytes 8 to 11.
    low_bits = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    high_bits = packed[:, None, 8:] >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    scales: Floats = scale * ((low_bits | high_bits.reshape(-1, 16) << 4).astype(np.float32) - 32)
    return scales[:, :, None] * _grouped(codes, 16)


def _q4_k(blocks: Bytes) -> Floats:
    scales, mins = _k_scales(blocks)
    return scales * _grouped(_k_nibbles(blocks[:, 16:]), 32) - mins


def _q5_k(blocks: Bytes) -> Floats:
    scales, mins = _k_scales(blocks)
    high = blocks[:, 16:48]
    fifth = (high[:, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1).reshape(-1, 256)
    return scales * _grouped(_k_nibbles(blocks[:, 48:]) | fifth << 4, 32) - mins


def _q6_k(blocks: Bytes) -> Floats:
    # Each half of 128 codes: 64 bytes of low nibbles (lows of all, then highs), 32 bytes of 2-bit pieces.
    low = blocks[:, :128].reshape(-1, 2, 1, 64) >> np.array([0, 4], np.uint8)[:, None] & 15
    high = _pairs(blocks[:, 128:192])
    codes = (low.reshape(-1, 256) | high << 4).astype(np.float32) - 32
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return scales[:, :, None] * _grouped(codes, 16)


def _iq4_nl(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * IQ4_VALUES[_nibbles(blocks[:, 2:])]


def _iq4_xs(blocks: Bytes) -> Floats:
    # Eight 6-bit scales: 4 low bits in 4 bytes, 2 high bits in a uint16.
    low_bits = (blocks[:, 4:8, None] >> np.array([0, 4], np.uint8) & 15).reshape(-1, 8)
    high_bits = blocks[:, 2:4].view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = _half(blocks, 0) * ((low_bits | high_bits << 4).astype(np.float32) - 32)
    codes = _nibbles(blocks[:, 8:].reshape(-1, 16)).reshape(-1, 8, 32)
    return scales[:, :, None] * IQ4_VALUES[codes]


def _mxfp4(blocks: Bytes) -> Floats:
    scale: Floats = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)  # an E8M0 scale, halved
    return scale * FP4_VALUES[_nibbles(blocks[:, 1:])]


def _half(blocks: Bytes, at: int) -> Floats:
    """(N, 1) the float16 at byte `at` of each qblock."""
    return blocks[:, at : at + 2].view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """(N, 2n) codes of n bytes each: all low nibbles, then all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _bits(packed: Bytes) -> Bytes:
    """(N, 8n) bits of n bytes each, lowest first."""
    return np.unpackbits(packed, axis=1, bitorder="little")


def _pairs(packed: Bytes) -> Bytes:
    """(N, 256) 2-bit codes of 64 bytes: each 32 bytes hold 128, lowest bits first for all 32."""
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    codes = packed.reshape(-1, 2, 1, 32) >> shifts & np.uint8(3)
    return codes.reshape(-1, 256)


def _k_nibbles(packed: Bytes) -> Bytes:
    """(N, 256) 4-bit codes of 128 bytes: each 32 bytes hold 64, low nibbles first."""
    return _nibbles(packed.reshape(-1, 32)).reshape(-1, 256)


def _grouped(codes: npt.NDArray[np.generic], group_size: int) -> Floats:
    """(N, 256 / group_size, group_size)"""
    return codes.astype(np.float32).reshape(len(codes), -1, group_size)


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """(N, 8, 1) scales and minimums of Q4_K and Q5_K: 6-bit numbers in 12 bytes, times two float16.

    The first four of each stand whole in bytes 0 to 7; the others have 4 bits in bytes 8 to 11 and
    their 2 high bits on top of the first four."""
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    mins = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    scale, min_scale = _half(blocks, 0), _half(blocks, 2)
    return (scale * scales.astype(np.float32))[:, :, None], (min_scale * mins.astype(np.float32))[:, :, None]


DEQUANTIZERS: dict[str, Callable[[Bytes], Floats]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}

# SPDX-License-Identifier: Apache-2.0
"""Writes GGUF files byte by byte, right or wrong on purpose, from the format's description alone:
nothing of the reader under test is used."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
LAYOUTS = {
    U8: "<B",
    I8: "<b",
    U16: "<H",
    I16: "<h",
    U32: "<I",
    I32: "<i",
    F32: "<f",
    BOOL: "<B",
    U64: "<Q",
    I64: "<q",
    F64: "<d",
}
TYPE_F32, TYPE_F16, TYPE_Q4_0, TYPE_Q8_0, TYPE_Q4_K = 0, 1, 2, 8, 12


def text(value: str | bytes, claimed: int | None = None) -> bytes:
    """A length and the bytes; `claimed` lies about the length."""
    content = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(content) if claimed is None else claimed) + content


def payload(value_type: int, value: Any) -> bytes:
    return text(value) if value_type == STRING else struct.pack(LAYOUTS[value_type], value)


def scalar(value_type: int, value: Any) -> bytes:
    """A metadata value: its type, then itself."""
    return struct.pack("<I", value_type) + payload(value_type, value)


def array(item_type: int, items: list[Any], claimed: int | None = None) -> bytes:
    count = len(items) if claimed is None else claimed
    head = struct.pack("<IIQ", ARRAY, item_type, count)
    return head + b"".join(payload(item_type, item) for item in items)


@dataclass
class Tensor:
    name: str | bytes
    dims: list[int]  # GGUF's order, columns first
    type_id: int
    data: bytes
    offset: int | None = None  # None: right behind the one before it
    num_dims: int | None = None  # a lie about len(dims)


def build(
    pairs: list[tuple[str | bytes, bytes]],
    tensors: list[Tensor],
    *,
    version: int = 3,
    magic: bytes = b"GGUF",
    alignment: int = 32,
    num_pairs: int | None = None,
    num_tensors: int | None = None,
) -> bytes:
    out = bytearray(magic + struct.pack("<I", version))
    out += struct.pack("<QQ", _or(num_tensors, len(tensors)), _or(num_pairs, len(pairs)))
    for key, value in pairs:
        out += text(key) + value
    data = bytearray()
    for tensor in tensors:
        data += bytes(-len(data) % alignment)
        out += text(tensor.name) + struct.pack("<I", _or(tensor.num_dims, len(tensor.dims)))
        out += b"".join(struct.pack("<Q", dim) for dim in tensor.dims)
        out += struct.pack("<IQ", tensor.type_id, _or(tensor.offset, len(data)))
        data += tensor.data
    out += bytes(-len(out) % alignment)
    return bytes(out + data)


def _or(lie: int | None, truth: int) -> int:
    return truth if lie is None else lie

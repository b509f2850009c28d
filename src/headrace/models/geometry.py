# SPDX-License-Identifier: Apache-2.0
"""The sizes of a decoder, read from metadata under the names that its file format has for them, and the
rules that they must keep whatever the architecture."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.models.fields import Fields

MAX_LAYERS = 4096
MAX_WIDTH = 2**24
MAX_HEADS = 2**16
MAX_HEAD_DIM = 2**12


@dataclass(frozen=True, slots=True, kw_only=True)
class GeometryKeys:
    """What a file format calls each size."""

    num_layers: str
    d_model: str
    d_ff: str
    num_heads: str
    num_kv_heads: str
    head_dim: str
    context_length: str
    norm_eps: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    num_layers: int
    d_model: int
    d_ff: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    norm_eps: float


def read_geometry(fields: Fields, keys: GeometryKeys) -> Geometry:
    num_heads = fields.count(keys.num_heads, high=MAX_HEADS)
    d_model = fields.count(keys.d_model, high=MAX_WIDTH)
    return Geometry(
        num_layers=fields.count(keys.num_layers, high=MAX_LAYERS),
        d_model=d_model,
        d_ff=fields.count(keys.d_ff, high=MAX_WIDTH),
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(fields, keys, num_heads),
        head_dim=_head_dim(fields, keys, d_model, num_heads),
        context_length=fields.count(keys.context_length),
        norm_eps=fields.positive(keys.norm_eps),
    )


def _num_kv_heads(fields: Fields, keys: GeometryKeys, num_heads: int) -> int:
    num_kv_heads = fields.count(keys.num_kv_heads, num_heads, high=MAX_HEADS)
    if num_heads % num_kv_heads:
        message = f"{num_kv_heads} does not divide the {num_heads} heads of {fields.name(keys.num_heads)}"
        raise fields.fault(keys.num_kv_heads, message)
    return num_kv_heads


def _head_dim(fields: Fields, keys: GeometryKeys, d_model: int, num_heads: int) -> int:
    if not fields.has(keys.head_dim) and d_model % num_heads:
        message = f"{num_heads} heads do not divide the width {d_model}, and no {fields.name(keys.head_dim)}"
        raise fields.fault(keys.num_heads, message)
    head_dim = fields.count(keys.head_dim, max(d_model // num_heads, 1), high=MAX_HEAD_DIM)
    if head_dim % 2:
        culprit = keys.head_dim if fields.has(keys.head_dim) else keys.num_heads
        raise fields.fault(culprit, f"makes a head {head_dim} wide; the rotary embedding needs an even width")
    return head_dim

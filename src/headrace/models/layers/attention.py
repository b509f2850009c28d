# SPDX-License-Identifier: Apache-2.0
"""The pieces of a self-attention layer that architectures share. `block` is a layer's name, `blk.3`."""

from __future__ import annotations

from headrace.models.ops import AttentionSpec, Ops, Value, Weight
from headrace.models.spec import ModelSpec
from headrace.models.weights import Weights


def project_qkv(
    ops: Ops[Value, Weight], x: Value, weights: Weights[Weight], block: str
) -> tuple[Value, Value, Value]:
    """q (T, H * K), k (T, G * K), v (T, G * K) of x (T, D), with biases where the model has them."""
    q = ops.linear(x, weights[f"{block}.attn_q.weight"], weights.get(f"{block}.attn_q.bias"))
    k = ops.linear(x, weights[f"{block}.attn_k.weight"], weights.get(f"{block}.attn_k.bias"))
    v = ops.linear(x, weights[f"{block}.attn_v.weight"], weights.get(f"{block}.attn_v.bias"))
    return q, k, v


def normalise_heads(
    ops: Ops[Value, Weight], q: Value, k: Value, spec: ModelSpec, weights: Weights[Weight], block: str
) -> tuple[Value, Value]:
    """RMS norm of each query and key head by itself, before the rotation."""
    q = ops.head_norm(q, weights[f"{block}.attn_q_norm.weight"], spec.num_heads, spec.norm_eps)
    k = ops.head_norm(k, weights[f"{block}.attn_k_norm.weight"], spec.num_kv_heads, spec.norm_eps)
    return q, k


def attend(
    ops: Ops[Value, Weight],
    q: Value,
    k: Value,
    v: Value,
    spec: ModelSpec,
    weights: Weights[Weight],
    layer: int,
) -> Value:
    """Rotate q and k, attend through the cache, project back to (T, D)."""
    rope = spec.layers[layer].rope
    q = ops.rope(q, spec.num_heads, rope)
    k = ops.rope(k, spec.num_kv_heads, rope)
    mixed = ops.attention(q, k, v, layer, attention_spec(spec, layer))
    block = f"blk.{layer}"
    return ops.linear(mixed, weights[f"{block}.attn_output.weight"], weights.get(f"{block}.attn_output.bias"))


def attention_spec(spec: ModelSpec, layer: int) -> AttentionSpec:
    return AttentionSpec(
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        scale=spec.attn_scale,
        window=spec.layers[layer].window,
        softcap=spec.attn_softcap,
    )

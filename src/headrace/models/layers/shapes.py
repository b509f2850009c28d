# SPDX-License-Identifier: Apache-2.0
"""Which tensors a decoder has and their row-major shapes, piece by piece, for `registry.check_tensors`."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.models.spec import ModelSpec

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorShapes:
    """What a file must hold and what it may hold besides."""

    required: dict[str, Shape]
    optional: dict[str, Shape] = field(default_factory=dict)


def decoder_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Embedding, head, and in each layer two norms, the attention and the gated feed-forward matrices."""
    d_model, d_ff = spec.d_model, spec.d_ff
    q_width, kv_width = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: dict[str, Shape] = {
        "token_embd.weight": (spec.vocab_size, d_model),
        "output_norm.weight": (d_model,),
    }
    if not spec.tied_head:
        shapes["output.weight"] = (spec.vocab_size, d_model)
    return shapes | _in_each_layer(
        spec,
        {
            "attn_norm.weight": (d_model,),
            "attn_q.weight": (q_width, d_model),
            "attn_k.weight": (kv_width, d_model),
            "attn_v.weight": (kv_width, d_model),
            "attn_output.weight": (d_model, q_width),
            "ffn_norm.weight": (d_model,),
            "ffn_gate.weight": (d_ff, d_model),
            "ffn_up.weight": (d_ff, d_model),
            "ffn_down.weight": (d_model, d_ff),
        },
    )


def attention_biases(spec: ModelSpec) -> dict[str, Shape]:
    q_width, kv_width = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    return _in_each_layer(
        spec,
        {
            "attn_q.bias": (q_width,),
            "attn_k.bias": (kv_width,),
            "attn_v.bias": (kv_width,),
            "attn_output.bias": (spec.d_model,),
        },
    )


def head_norm_shapes(spec: ModelSpec) -> dict[str, Shape]:
    return _in_each_layer(
        spec, {"attn_q_norm.weight": (spec.head_dim,), "attn_k_norm.weight": (spec.head_dim,)}
    )


def post_norm_shapes(spec: ModelSpec) -> dict[str, Shape]:
    return _in_each_layer(
        spec, {"post_attention_norm.weight": (spec.d_model,), "post_ffw_norm.weight": (spec.d_model,)}
    )


def _in_each_layer(spec: ModelSpec, shapes: dict[str, Shape]) -> dict[str, Shape]:
    layers = range(spec.num_layers)
    return {f"blk.{layer}.{name}": shape for layer in layers for name, shape in shapes.items()}

# SPDX-License-Identifier: Apache-2.0
"""Gemma 3 (text): norms before and after each half of a layer, a norm on each query and key head, and
layers that differ in window and rotation (`spec.layers`): five local ones to each global one."""

from __future__ import annotations

from headrace.models.layers.attention import attend, normalise_heads, project_qkv
from headrace.models.layers.feed_forward import feed_forward
from headrace.models.layers.head import output_logits
from headrace.models.layers.shapes import (
    TensorShapes,
    attention_biases,
    decoder_shapes,
    head_norm_shapes,
    post_norm_shapes,
)
from headrace.models.ops import Ops, Value, Weight
from headrace.models.spec import ModelSpec
from headrace.models.weights import Weights


def forward(ops: Ops[Value, Weight], spec: ModelSpec, weights: Weights[Weight]) -> Value:
    x = ops.embed(weights["token_embd.weight"], spec.embed_scale)
    for layer in range(spec.num_layers):
        block = f"blk.{layer}"
        h = ops.rms_norm(x, weights[f"{block}.attn_norm.weight"], spec.norm_eps)
        q, k, v = project_qkv(ops, h, weights, block)
        q, k = normalise_heads(ops, q, k, spec, weights, block)
        h = attend(ops, q, k, v, spec, weights, layer)
        x = ops.add(x, ops.rms_norm(h, weights[f"{block}.post_attention_norm.weight"], spec.norm_eps))

        h = ops.rms_norm(x, weights[f"{block}.ffn_norm.weight"], spec.norm_eps)
        h = feed_forward(ops, h, spec, weights, block)
        x = ops.add(x, ops.rms_norm(h, weights[f"{block}.post_ffw_norm.weight"], spec.norm_eps))
    return output_logits(ops, x, spec, weights)


def tensor_shapes(spec: ModelSpec) -> TensorShapes:
    required = decoder_shapes(spec) | head_norm_shapes(spec) | post_norm_shapes(spec)
    return TensorShapes(required=required, optional=attention_biases(spec))

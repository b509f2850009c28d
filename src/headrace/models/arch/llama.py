# SPDX-License-Identifier: Apache-2.0
"""Llama (Touvron et al. 2023) and those that share its pass: Mistral, SmolLM2, TinyLlama."""

from __future__ import annotations

from headrace.models.layers.attention import attend, project_qkv
from headrace.models.layers.feed_forward import feed_forward
from headrace.models.layers.head import output_logits
from headrace.models.layers.shapes import TensorShapes, attention_biases, decoder_shapes
from headrace.models.ops import Ops, Value, Weight
from headrace.models.spec import ModelSpec
from headrace.models.weights import Weights


def forward(ops: Ops[Value, Weight], spec: ModelSpec, weights: Weights[Weight]) -> Value:
    x = ops.embed(weights["token_embd.weight"], spec.embed_scale)
    for layer in range(spec.num_layers):
        block = f"blk.{layer}"
        h = ops.rms_norm(x, weights[f"{block}.attn_norm.weight"], spec.norm_eps)
        q, k, v = project_qkv(ops, h, weights, block)
        x = ops.add(x, attend(ops, q, k, v, spec, weights, layer))

        h = ops.rms_norm(x, weights[f"{block}.ffn_norm.weight"], spec.norm_eps)
        x = ops.add(x, feed_forward(ops, h, spec, weights, block))
    return output_logits(ops, x, spec, weights)


def tensor_shapes(spec: ModelSpec) -> TensorShapes:
    return TensorShapes(required=decoder_shapes(spec), optional=attention_biases(spec))

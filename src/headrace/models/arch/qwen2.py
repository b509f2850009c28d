# SPDX-License-Identifier: Apache-2.0
"""Qwen 2 and 2.5 (Yang et al. 2024): Llama's pass with biases on the q, k and v projections."""

from __future__ import annotations

from headrace.models.arch.llama import forward
from headrace.models.layers.shapes import TensorShapes, attention_biases, decoder_shapes
from headrace.models.spec import ModelSpec

__all__ = ["forward", "tensor_shapes"]


def tensor_shapes(spec: ModelSpec) -> TensorShapes:
    biases = attention_biases(spec)
    required = {name: shape for name, shape in biases.items() if not name.endswith("attn_output.bias")}
    return TensorShapes(required=decoder_shapes(spec) | required, optional=biases)

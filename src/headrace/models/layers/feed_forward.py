# SPDX-License-Identifier: Apache-2.0
"""The gated feed-forward layer (Shazeer 2020) that every architecture here uses."""

from __future__ import annotations

from headrace.models.ops import Ops, Value, Weight
from headrace.models.spec import ModelSpec
from headrace.models.weights import Weights


def feed_forward(
    ops: Ops[Value, Weight], x: Value, spec: ModelSpec, weights: Weights[Weight], block: str
) -> Value:
    """down(activation(gate(x)) * up(x)): (T, D) to (T, D) by way of (T, d_ff)."""
    gate = ops.linear(x, weights[f"{block}.ffn_gate.weight"])
    up = ops.linear(x, weights[f"{block}.ffn_up.weight"])
    return ops.linear(ops.gated(gate, up, spec.activation), weights[f"{block}.ffn_down.weight"])

# SPDX-License-Identifier: Apache-2.0
"""From the last layer's output to logits, only where the plan wants them."""

from __future__ import annotations

from headrace.models.ops import Ops, Value, Weight
from headrace.models.spec import ModelSpec
from headrace.models.weights import Weights


def output_logits(ops: Ops[Value, Weight], x: Value, spec: ModelSpec, weights: Weights[Weight]) -> Value:
    """Logits (O, V) of x (T, D)."""
    x = ops.select_outputs(x)
    x = ops.rms_norm(x, weights["output_norm.weight"], spec.norm_eps)
    logits = ops.linear(x, weights["token_embd.weight" if spec.tied_head else "output.weight"])
    if spec.final_softcap is not None:
        logits = ops.softcap(logits, spec.final_softcap)
    return logits

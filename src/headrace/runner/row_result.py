# SPDX-License-Identifier: Apache-2.0
"""What a backend holds its own answers to: numbers, or the row says that it broke."""

from __future__ import annotations

import math

from headrace.core.plan import RowResult, TokenResult


def row_result(sequence_id: int, outputs: tuple[TokenResult, ...]) -> RowResult:
    """A negative token stands for logits of which none was a number, so that nothing could be drawn."""
    if all(output.token >= 0 and math.isfinite(output.logprob) for output in outputs):
        return RowResult(sequence_id, outputs)
    return RowResult(sequence_id, (), error="the model gave no finite logit; its weights may be damaged")

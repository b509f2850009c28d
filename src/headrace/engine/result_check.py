# SPDX-License-Identifier: Apache-2.0
"""Whether a backend answered the plan it was given. Checked before anything moves on, so that a backend at
fault costs the requests of one step and never leaves sequences half advanced."""

from __future__ import annotations

from headrace.core.plan import RowPlan, RowResult, StepPlan, StepResult


def check_result(plan: StepPlan, result: StepResult, vocab_size: int) -> None:
    """Raise ValueError when rows, outputs or tokens are not those the plan asked for."""
    if len(result.rows) != len(plan.rows):
        raise ValueError(f"the backend answered {len(result.rows)} rows to a plan of {len(plan.rows)}")
    for row, answer in zip(plan.rows, result.rows, strict=True):
        _check_row(row, answer, vocab_size)


def _check_row(row: RowPlan, answer: RowResult, vocab_size: int) -> None:
    num_outputs = len(row.outputs) if answer.error is None else 0
    if answer.sequence_id != row.sequence_id or len(answer.outputs) != num_outputs:
        raise ValueError(
            f"the backend answered sequence {answer.sequence_id} with {len(answer.outputs)} outputs "
            f"to a row of sequence {row.sequence_id} with {len(row.outputs)}"
        )
    for output, token in zip(row.outputs, answer.outputs, strict=answer.error is None):
        fits = 0 <= token.token < vocab_size if output.target is None else token.token == output.target
        if not fits:
            raise ValueError(f"the backend answered token {token.token} for {output}")

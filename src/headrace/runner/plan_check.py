# SPDX-License-Identifier: Apache-2.0
"""What every backend holds a StepPlan to before it computes anything. A breach is a bug above the runner,
so it is a ValueError that says which row and what."""

from __future__ import annotations

from headrace.core.plan import BackendInfo, OutputPlan, RowPlan, StepPlan
from headrace.core.request import MAX_TOP_LOGPROBS


def check_plan(plan: StepPlan, info: BackendInfo) -> None:
    for row in plan.rows:
        _check_tokens(row, info)
        _check_blocks(row, info)
        _check_outputs(row, info)
    _check_written_once(plan, info)
    _check_copies(plan, info)


def _check_copies(plan: StepPlan, info: BackendInfo) -> None:
    """Copies are made before the rows, in any order: so none may read what another one writes."""
    targets = [copy.target for copy in plan.copies]
    for copy in plan.copies:
        if not (0 <= copy.source < info.num_blocks and 0 <= copy.target < info.num_blocks):
            raise ValueError(f"{copy} is outside blocks 0 .. {info.num_blocks - 1}")
        if copy.source in targets or targets.count(copy.target) > 1:
            raise ValueError(f"{copy} reads or writes what another copy of the step writes")


def _fault(row: RowPlan, message: str) -> ValueError:
    return ValueError(f"row of sequence {row.sequence_id}: {message}")


def _check_tokens(row: RowPlan, info: BackendInfo) -> None:
    if row.num_new < 1:
        raise _fault(row, "computes no token")
    if row.num_computed < 0:
        raise _fault(row, f"num_computed is {row.num_computed}")
    if min(row.tokens) < 0 or max(row.tokens) >= info.vocab_size:
        raise _fault(row, f"holds a token id outside 0 .. {info.vocab_size - 1}")
    if row.num_computed + row.num_new > info.max_model_len:
        raise _fault(row, f"{row.num_computed + row.num_new} tokens exceed the limit of {info.max_model_len}")


def _check_blocks(row: RowPlan, info: BackendInfo) -> None:
    needed = -(-(row.num_computed + row.num_new) // info.block_size)
    if len(row.block_ids) < needed:
        raise _fault(row, f"has {len(row.block_ids)} blocks and needs {needed}")
    if min(row.block_ids) < 0 or max(row.block_ids) >= info.num_blocks:
        raise _fault(row, f"holds a block id outside 0 .. {info.num_blocks - 1}")


def _check_outputs(row: RowPlan, info: BackendInfo) -> None:
    before = 0
    for output in row.outputs:
        if not before <= output.index < row.num_new:
            raise _fault(
                row, f"output index {output.index} is out of order or outside its {row.num_new} tokens"
            )
        before = output.index
        _check_output(row, output, info)
    draws = [output for output in row.outputs if output.draw is not None]
    if len(draws) > 1 or (draws and draws[0].index != row.num_new - 1):
        raise _fault(row, "may draw once, at its last token")


def _check_output(row: RowPlan, output: OutputPlan, info: BackendInfo) -> None:
    if (output.draw is None) == (output.target is None):
        raise _fault(row, "an output either draws or scores a target")
    if not 0 <= output.num_drawable <= info.vocab_size:
        raise _fault(row, f"num_drawable {output.num_drawable} is outside 0 .. {info.vocab_size}")
    num_ids = output.num_drawable or info.vocab_size
    if output.target is not None and not 0 <= output.target < num_ids:
        raise _fault(row, f"target {output.target} is outside 0 .. {num_ids - 1}")
    if output.draw is not None and any(not 0 <= token < num_ids for token, _ in output.draw.logit_bias):
        raise _fault(row, f"biases a token id outside 0 .. {num_ids - 1}")
    if not -1 <= output.num_top <= MAX_TOP_LOGPROBS:
        raise _fault(row, f"num_top is {output.num_top}")


def _check_written_once(plan: StepPlan, info: BackendInfo) -> None:
    """Blocks may be read by many rows; a block that is written in this step has one row that writes it."""
    writer: dict[int, RowPlan] = {}
    for row in plan.rows:
        first = row.num_computed // info.block_size
        last = (row.num_computed + row.num_new - 1) // info.block_size
        for block_id in row.block_ids[first : last + 1]:
            if block_id in writer:
                raise _fault(row, f"writes block {block_id}, as sequence {writer[block_id].sequence_id} does")
            writer[block_id] = row

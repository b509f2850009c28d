# SPDX-License-Identifier: Apache-2.0
"""A plan that breaks the contract between engine and runner is refused with the row and the breach."""

from __future__ import annotations

import pytest

from draws import GREEDY
from headrace.core.plan import BackendInfo, BlockCopy, OutputPlan, RowPlan, StepPlan
from headrace.runner.plan_check import check_plan

INFO = BackendInfo(vocab_size=100, max_model_len=16, block_size=4, num_blocks=8)


def row(
    *,
    sequence_id: int = 1,
    tokens: tuple[int, ...] = (1, 2, 3),
    num_computed: int = 3,
    block_ids: tuple[int, ...] = (7, 0),
    outputs: tuple[OutputPlan, ...] = (),
) -> RowPlan:
    return RowPlan(sequence_id, tokens, num_computed, block_ids, outputs)


def test_a_sound_plan_passes() -> None:
    outputs = (OutputPlan(0, None, 99, 0), OutputPlan(2, None, 5, 20), OutputPlan(2, GREEDY, None, -1))
    shared = row(sequence_id=2, num_computed=4, tokens=(9,), block_ids=(7, 3, 4))
    check_plan(StepPlan((row(num_computed=4, outputs=outputs), shared)), INFO)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (row(tokens=()), "no token"),
        (row(num_computed=-1), "num_computed"),
        (row(tokens=(1, 100)), "outside 0 .. 99"),
        (row(tokens=(-1,)), "outside 0 .. 99"),
        (row(num_computed=14, block_ids=(1, 2, 3, 4, 5)), "limit of 16"),
        (row(block_ids=(7,)), "has 1 blocks and needs 2"),
        (row(block_ids=()), "has 0 blocks and needs 2"),
        (row(block_ids=(7, 8)), "outside 0 .. 7"),
        (row(block_ids=(-1, 7)), "outside 0 .. 7"),
        (row(outputs=(OutputPlan(3, None, 5, 0),)), "output index 3"),
        (row(outputs=(OutputPlan(1, None, 5, 0), OutputPlan(0, None, 5, 0))), "output index 0"),
        (row(outputs=(OutputPlan(0, None, None, 0),)), "either draws or scores"),
        (row(outputs=(OutputPlan(2, GREEDY, 5, 0),)), "either draws or scores"),
        (row(outputs=(OutputPlan(1, GREEDY, None, 0),)), "at its last token"),
        (row(outputs=(OutputPlan(2, GREEDY, None, 0),) * 2), "may draw once"),
        (row(outputs=(OutputPlan(0, None, 100, 0),)), "target 100"),
        (row(outputs=(OutputPlan(0, None, 5, -2),)), "num_top"),
        (row(outputs=(OutputPlan(0, None, 5, 0, num_drawable=101),)), "num_drawable 101"),
        (row(outputs=(OutputPlan(0, None, 5, 0, num_drawable=5),)), "target 5 is outside 0 .. 4"),
    ],
)
def test_a_breach_is_named(broken: RowPlan, message: str) -> None:
    with pytest.raises(ValueError, match=f"sequence 1: .*{message}"):
        check_plan(StepPlan((broken,)), INFO)


def test_two_rows_may_not_write_one_block() -> None:
    with pytest.raises(ValueError, match="sequence 2: writes block 0, as sequence 1 does"):
        check_plan(StepPlan((row(), row(sequence_id=2, block_ids=(6, 0)))), INFO)


def test_sound_copies_pass() -> None:
    copies = (BlockCopy(1, 2), BlockCopy(1, 3), BlockCopy(4, 7))
    check_plan(StepPlan((), copies=copies), INFO)
    check_plan(StepPlan((row(),), copies=copies), INFO)  # which reads a target


@pytest.mark.parametrize(
    ("copies", "message"),
    [
        ((BlockCopy(8, 0),), "outside blocks 0 .. 7"),
        ((BlockCopy(0, 8),), "outside blocks 0 .. 7"),
        ((BlockCopy(-1, 0),), "outside blocks 0 .. 7"),
        ((BlockCopy(0, -1),), "outside blocks 0 .. 7"),
        ((BlockCopy(3, 3),), "another copy"),
        ((BlockCopy(0, 3), BlockCopy(1, 3)), "another copy"),
        ((BlockCopy(0, 3), BlockCopy(3, 1)), "another copy"),
    ],
)
def test_copies_that_hang_on_their_order_are_refused(copies: tuple[BlockCopy, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_plan(StepPlan((), copies=copies), INFO)

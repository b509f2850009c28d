# SPDX-License-Identifier: Apache-2.0
"""The fake backend keeps the contract, and notices when the contract's users do not."""

from __future__ import annotations

import pytest

from draws import GREEDY
from headrace.core.plan import OutputPlan, RowPlan, StepPlan
from headrace.runner.backends.fake import FakeBackend
from unit.backend_conformance import check_backend

DRAW = (OutputPlan(index=0, draw=GREEDY, target=None, num_top=3),)


@pytest.mark.parametrize(("vocab_size", "block_size"), [(64, 4), (7, 1), (1000, 16)])
def test_conforms(vocab_size: int, block_size: int) -> None:
    check_backend(FakeBackend(vocab_size=vocab_size, block_size=block_size))


def test_a_wrong_block_changes_the_answer() -> None:
    backend = FakeBackend(block_size=2)
    backend.execute(StepPlan(rows=(RowPlan(0, (1, 2, 3, 4, 5, 6), 0, (5, 9, 2), ()),)))
    right, *wrong = [
        backend.execute(StepPlan(rows=(RowPlan(0, (7,), 6, (*blocks, 11), DRAW),))).rows[0].outputs[0].top
        for blocks in [(5, 9, 2), (9, 5, 2), (5, 2, 9), (5, 8, 2), (8, 9, 2)]
    ]
    assert right not in wrong


def test_a_skipped_or_overwritten_place_changes_the_answer() -> None:
    def last_top(*chunks: tuple[int, tuple[int, ...]]) -> object:
        backend = FakeBackend(block_size=2)
        for begin, tokens in chunks[:-1]:
            backend.execute(StepPlan(rows=(RowPlan(0, tokens, begin, (3, 1, 2), ()),)))
        begin, tokens = chunks[-1]
        plan = StepPlan(rows=(RowPlan(0, tokens, begin, (3, 1, 2), DRAW),))
        return backend.execute(plan).rows[0].outputs[0].top

    whole = last_top((0, (1, 2, 3)), (3, (4,)))
    assert last_top((0, (1,)), (1, (2, 3)), (3, (4,))) == whole
    assert last_top((0, (1, 2)), (3, (4,))) != whole
    assert last_top((0, (1, 2, 3)), (1, (9,)), (3, (4,))) != whole


def test_fails_when_told_to() -> None:
    backend = FakeBackend(fail_at={1})
    plan = StepPlan(rows=(RowPlan(0, (1,), 0, (0,), DRAW),))
    backend.execute(plan)
    with pytest.raises(RuntimeError, match="step 1"):
        backend.execute(plan)
    backend.execute(plan)

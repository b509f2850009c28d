# SPDX-License-Identifier: Apache-2.0
"""Which sequences move on in a step. `plan()` looks and returns; `commit(plan, result)` is the only place
where sequences and blocks move on; `drop` is the only other way out.

Blocks are reserved as sequences grow. When none is left for a running sequence, the youngest one is
preempted: its blocks go back, its tokens stay known, and it computes them again when it is its turn.
The oldest can always go on, because the door refuses what does not fit into all blocks together."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

from headrace.core.config import EngineConfig
from headrace.core.events import Event, Failed, Finished, FinishReason, PromptScored, TokenEvent
from headrace.core.plan import BackendInfo, RowPlan, RowResult, StepPlan, StepResult, TokenResult
from headrace.engine.admission import max_tokens_in
from headrace.engine.budget import StepBudget
from headrace.engine.policy import share
from headrace.engine.sampling import outputs_of
from headrace.engine.sequence import Sequence
from headrace.kv.block_pool import BlockPool
from headrace.kv.draft import BlockDraft
from headrace.kv.lease import BlockLease


class Scheduler:
    """One thread calls it. `running` and `waiting` are each in order of arrival, and whoever runs came
    before whoever waits. Both are by sequence id, so that one leaves in no time however many there are.
    """

    def __init__(self, info: BackendInfo, config: EngineConfig) -> None:
        self._config = config
        self._pool = BlockPool(info.num_blocks, info.block_size)
        self._max_tokens = max_tokens_in(info)
        self._vocab_size = info.vocab_size
        self._running: dict[int, Sequence] = {}
        self._waiting: OrderedDict[int, Sequence] = OrderedDict()
        self._by_request: dict[str, dict[int, Sequence]] = {}  # all of both
        self._num_preemptions = 0

    @property
    def pool(self) -> BlockPool:
        return self._pool

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_preemptions(self) -> int:
        return self._num_preemptions

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    def new_lease(self) -> BlockLease:
        return BlockLease(self._pool)

    def sequences(self) -> Iterator[Sequence]:
        """All that are not over, to look at."""
        yield from self._running.values()
        yield from self._waiting.values()

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that the door let in."""
        self._waiting[sequence.sequence_id] = sequence
        self._by_request.setdefault(sequence.request_id, {})[sequence.sequence_id] = sequence

    # ---- look ----

    def plan(self) -> StepPlan:
        budget = StepBudget(self._config.max_num_batched_tokens)
        draft = BlockDraft(self._pool)
        rows, preempted = self._plan_running(budget, draft)
        if not preempted:
            rows += self._plan_waiting(budget, draft)
        return StepPlan(rows=tuple(rows), preempted=tuple(sequence.sequence_id for sequence in preempted))

    def _plan_running(self, budget: StepBudget, draft: BlockDraft) -> tuple[list[RowPlan], list[Sequence]]:
        """Rows of the running sequences, oldest first, and the youngest ones that must make place."""
        rows: list[RowPlan] = []
        preempted: list[Sequence] = []
        running = list(self._running.values())
        staying = deque(zip(running, share(running, budget), strict=True))
        while staying:
            sequence, num_new = staying.popleft()
            if num_new == 0:
                continue
            row = self._row(sequence, num_new, draft)
            while row is None and staying:
                victim, _ = staying.pop()
                preempted.append(victim)
                draft.give(victim.lease.block_ids)
                row = self._row(sequence, num_new, draft)
            if row is not None:
                rows.append(
                    row
                )  # else it sits this step out, keeping its blocks until an older one needs them
        return rows, preempted

    def _plan_waiting(self, budget: StepBudget, draft: BlockDraft) -> list[RowPlan]:
        """Rows of the waiting sequences that can start, in order and without overtaking. One starts when
        the blocks left, less those the running ones need for tokens they know, hold all of its tokens."""
        rows: list[RowPlan] = []
        num_promised = sum(self._num_missing(sequence) for sequence in self._running.values())
        num_promised -= self._pool.num_free - draft.num_left  # kept by this plan
        for sequence in self._waiting.values():
            if len(self._running) + len(rows) >= self._config.max_num_seqs or budget.is_spent:
                break
            num_needed = self._num_missing(sequence)
            if num_needed > draft.num_left - num_promised:
                break
            num_new = budget.spend(sequence)
            row = self._row(sequence, num_new, draft) if num_new else None
            if row is None:
                break
            num_promised += num_needed - len(row.block_ids)
            rows.append(row)
        return rows

    def _num_missing(self, sequence: Sequence) -> int:
        """Blocks the sequence lacks for the tokens it knows and the next one."""
        num_places = min(sequence.num_known + 1, self._max_tokens)
        return max(self._pool.blocks_for(num_places) - len(sequence.lease.block_ids), 0)

    def _row(self, sequence: Sequence, num_new: int, draft: BlockDraft) -> RowPlan | None:
        """The sequence's place in the step, None when the draft has too few blocks."""
        begin, end = sequence.num_computed, sequence.num_computed + num_new
        block_ids = sequence.lease.block_ids
        num_lacking = self._pool.blocks_for(end) - len(block_ids)
        if num_lacking > 0:
            taken = draft.take(num_lacking)
            if taken is None:
                return None
            block_ids += taken
        return RowPlan(
            sequence_id=sequence.sequence_id,
            tokens=tuple(sequence.tokens[begin:end]),
            num_computed=begin,
            block_ids=block_ids,
            outputs=outputs_of(sequence, num_new, self._vocab_size),
        )

    # ---- move on ----

    def commit(self, plan: StepPlan, result: StepResult) -> list[Event]:
        """Carry out the plan, which is the last one made and has been computed as `result`."""
        if plan.preempted:
            self._preempt(plan.preempted)
        self._admit(plan)
        events: list[Event] = []
        for row, row_result in zip(plan.rows, result.rows, strict=True):
            sequence = self._running.get(row.sequence_id)
            if sequence is None:
                continue  # its request failed a few rows before
            if row_result.error is not None:
                events.append(Failed(sequence.request_id, row_result.error))
                self.drop(sequence.request_id)
                continue
            self._advance(sequence, row)
            events += self._record(sequence, row, row_result)
            reason = sequence.finish_reason
            if reason is not None:
                events.append(_finished(sequence, reason))
                self._forget(sequence)
        return events

    def drop(self, request_id: str) -> list[Event]:
        """Forget a request's unfinished sequences, whatever they were at."""
        dropped = list(self._by_request.get(request_id, {}).values())
        for sequence in dropped:
            self._forget(sequence)
        return [_finished(sequence, "abort") for sequence in dropped]

    def _forget(self, sequence: Sequence) -> None:
        sequence.lease.release()
        queue = self._running if sequence.sequence_id in self._running else self._waiting
        del queue[sequence.sequence_id]
        siblings = self._by_request[sequence.request_id]
        del siblings[sequence.sequence_id]
        if not siblings:
            del self._by_request[sequence.request_id]

    def _preempt(self, sequence_ids: tuple[int, ...]) -> None:
        """From youngest to oldest, so that the waiting queue stays in order of arrival."""
        for sequence_id in sequence_ids:
            youngest, sequence = self._running.popitem()
            assert youngest == sequence_id, "only the youngest are preempted"
            sequence.lease.release()
            sequence.num_computed = 0
            self._waiting[sequence_id] = sequence
            self._waiting.move_to_end(sequence_id, last=False)
            self._num_preemptions += 1

    def _admit(self, plan: StepPlan) -> None:
        planned = {row.sequence_id for row in plan.rows}
        while self._waiting and next(iter(self._waiting)) in planned:
            sequence_id, sequence = self._waiting.popitem(last=False)
            self._running[sequence_id] = sequence

    def _advance(self, sequence: Sequence, row: RowPlan) -> None:
        assert sequence.num_computed == row.num_computed, "a plan is committed once, in order"
        new_blocks = row.block_ids[len(sequence.lease.block_ids) :]
        if new_blocks:
            sequence.lease.reserve(new_blocks)
        sequence.num_computed += row.num_new

    def _record(self, sequence: Sequence, row: RowPlan, result: RowResult) -> list[Event]:
        """Append what the row's outputs gave; events when the scores are complete or a token came."""
        drawn: list[TokenResult] = []
        for output, token in zip(row.outputs, result.outputs, strict=True):
            (sequence.scores if output.draw is None else drawn).append(token)
        events: list[Event] = []
        if sequence.owes_scores and len(sequence.scores) == sequence.num_to_score:
            events.append(PromptScored(sequence.request_id, tuple(sequence.scores)))
            sequence.owes_scores = False
        if drawn:
            sequence.tokens.extend(token.token for token in drawn)
            events.append(TokenEvent(sequence.request_id, sequence.index, tuple(drawn)))
        return events


def _finished(sequence: Sequence, reason: FinishReason) -> Finished:
    return Finished(
        request_id=sequence.request_id,
        index=sequence.index,
        reason=reason,
        num_prompt=sequence.num_prompt,
        num_output=sequence.num_output,
    )

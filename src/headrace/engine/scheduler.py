# SPDX-License-Identifier: Apache-2.0
"""Which sequences move on in a step. `plan()` looks and returns; `begin(schedule)` writes what is certain as
soon as a step runs, so that the next one can be planned meanwhile; `commit(schedule, result)` writes what it
gave; `drop` is the only other way out."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.core.config import EngineConfig
from headrace.core.events import (
    Event,
    Failed,
    Finished,
    FinishReason,
    FirstToken,
    PromptScored,
    SequenceTimes,
    TokenEvent,
)
from headrace.core.plan import UNKNOWN, BackendInfo, RowPlan, RowResult, StepPlan, StepResult, TokenResult
from headrace.engine.admission import max_tokens_in
from headrace.engine.blocks import SequenceBlocks
from headrace.engine.planner import Planner, View
from headrace.engine.policy import Policy, policy_of
from headrace.engine.rates import StepCost
from headrace.engine.sampling import with_history
from headrace.engine.schedule import Hold, Schedule
from headrace.engine.sequence import Sequence
from headrace.engine.wait_clock import KV_PRESSURE, OTHER_PROMPTS, Mix, step_mix
from headrace.kv.block_pool import BlockPool
from headrace.kv.lease import BlockLease
from headrace.kv.prefix_index import PrefixIndex


class Scheduler:
    """One thread calls it. A sequence waits in the policy's queue or runs; both are by sequence id, so that
    one leaves in no time however many there are. Times are `time.monotonic()`."""

    def __init__(self, info: BackendInfo, config: EngineConfig, cost: StepCost | None = None) -> None:
        self._policy: Policy[Sequence] = policy_of(config)
        self._blocks = SequenceBlocks(
            info.num_blocks, info.block_size, reuses_prefixes=config.enable_prefix_caching
        )
        self._running: dict[int, Sequence] = {}
        self._waiting: dict[int, Sequence] = {}  # the same as in the policy's queue
        self._by_request: dict[str, dict[int, Sequence]] = {}  # all of both
        self._held: dict[int, Hold] = {}  # by the last schedule
        self._view = View(
            config=config,
            pool=self._blocks.pool,
            index=self._blocks.index_in_use,
            policy=self._policy,
            cost=cost or StepCost(),
            running=self._running,
            pending=self._blocks.pending,
            max_tokens=max_tokens_in(info),
            vocab_size=info.vocab_size,
        )
        self._num_preemptions = 0
        self._num_queried = self._num_hit = 0
        self._num_queued_tokens = 0
        self._gaps: list[float] = []
        self._has_left = False  # somebody, since the last step began

    # ---- to look at ----

    @property
    def pool(self) -> BlockPool:
        return self._blocks.pool

    @property
    def index(self) -> PrefixIndex:
        return self._blocks.index

    @property
    def running(self) -> list[Sequence]:
        return list(self._running.values())

    @property
    def waiting(self) -> list[Sequence]:
        """In no order."""
        return list(self._waiting.values())

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_waiting_for_blocks(self) -> int:
        return sum(hold is Hold.BLOCKS for hold in list(self._held.values()))

    @property
    def num_preemptions(self) -> int:
        return self._num_preemptions

    @property
    def num_queried_tokens(self) -> int:
        """Prompt tokens looked up in the prefix cache."""
        return self._num_queried

    @property
    def num_hit_tokens(self) -> int:
        """Of those, found."""
        return self._num_hit

    @property
    def num_queued_tokens(self) -> int:
        """Prompt tokens of the sequences that wait."""
        return self._num_queued_tokens

    @property
    def last_gaps_s(self) -> tuple[float, ...]:
        """Of the answers that the last commit moved on: the time since their token before."""
        return tuple(self._gaps)

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    def sequences(self) -> Iterator[Sequence]:
        """All that are not over."""
        yield from self._running.values()
        yield from self._waiting.values()

    def rank(self, sequence: Sequence) -> tuple[float, ...]:
        """Smaller goes first."""
        return self._policy.rank(sequence)

    def num_findable(self, sequence: Sequence) -> int:
        """How many tokens' K/V a sequence would find now, whole blocks only. From any thread."""
        index = self._view.index
        if index is None:
            return 0
        size = self._blocks.pool.block_size
        return len(index.find(sequence.keys, sequence.num_reusable // size)) * size

    def new_lease(self) -> BlockLease:
        return self._blocks.new_lease()

    def plan(self) -> Schedule:
        """What the next step should be. While a step runs: on the understanding that every sequence in it
        gets a token and goes on. The token is UNKNOWN until `filled`."""
        return Planner(self._view).plan()

    def filled(self, schedule: Schedule) -> Schedule | None:
        """A schedule that was made while the last step ran, with the tokens that it drew. None when it does
        not fit any more, because a sequence is over (it may be in it, or its place free for another), holds
        other blocks than before, or has computed what another one waits to reuse."""
        if self._blocks.has_swapped or (self._has_left and self._waiting):
            return None
        if any(hold is Hold.PREFIX for _, hold in schedule.held):
            return None
        if any(sequence_id not in self._running for sequence_id in schedule.step.preempted):
            return None
        rows = []
        for row in schedule.step.rows:
            sequence = self._running.get(row.sequence_id) or self._waiting.get(row.sequence_id)
            if sequence is None:
                return None
            rows.append(_filled(row, sequence))
        step = StepPlan(tuple(rows), schedule.step.preempted, schedule.step.copies)
        return Schedule(step, schedule.held)

    # ---- move on ----

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that the door let in."""
        self._enqueue(sequence)
        self._by_request.setdefault(sequence.request_id, {})[sequence.sequence_id] = sequence

    def begin(self, schedule: Schedule, now_s: float) -> None:
        """The schedule, made from this state, is being computed."""
        self._has_left = self._blocks.has_swapped = False
        for sequence_id in schedule.step.preempted:
            self._preempt(self._running[sequence_id], now_s)
        self._held = dict(schedule.held)
        for row in schedule.step.rows:
            sequence = self._running.get(row.sequence_id)
            if sequence is None:
                sequence = self._start(row, now_s)
            self._blocks.grow(sequence, row.block_ids)
            sequence.num_computed += row.num_new
            draws = row.outputs and row.outputs[-1].draw is not None
            if draws:
                sequence.tokens.append(UNKNOWN)
            self._charge(sequence, row, int(bool(draws)))
        self._tell_clocks(schedule, now_s)

    def commit(self, schedule: Schedule, result: StepResult, now_s: float) -> list[Event]:
        """The schedule that was begun last has been computed as `result`."""
        self._gaps = []
        events: list[Event] = []
        for row, row_result in zip(schedule.step.rows, result.rows, strict=True):
            sequence = self._running.get(row.sequence_id)
            if sequence is None:
                continue  # dropped meanwhile
            if row_result.error is not None:
                events.append(Failed(sequence.request_id, row_result.error))
                self.drop(sequence.request_id)
                continue
            events += self._record(sequence, row, row_result, now_s)
            self._blocks.settle(sequence, row.num_computed + row.num_new)
            reason = sequence.finish_reason
            if reason is not None:
                events.append(_finished(sequence, reason, now_s))
                self._forget(sequence)
        return events

    def drop(self, request_id: str, now_s: float = 0.0) -> list[Event]:
        """Forget a request's unfinished sequences, whatever they were at. A step that computes them may be
        running: their blocks are free for the next one."""
        dropped = list(self._by_request.get(request_id, {}).values())
        events: list[Event] = []
        for sequence in dropped:
            if sequence.tokens[-1] == UNKNOWN:
                sequence.tokens.pop()
            events.append(_finished(sequence, "abort", now_s))
            self._forget(sequence)
        return events

    def forget_prefixes(self) -> None:
        """Nothing that was computed so far is reused."""
        self._blocks.index.clear()

    def _forget(self, sequence: Sequence) -> None:
        if self._running.pop(sequence.sequence_id, None) is None:
            self._dequeue(sequence)
        self._has_left = True
        self._held.pop(sequence.sequence_id, None)
        self._blocks.leave(sequence)
        siblings = self._by_request[sequence.request_id]
        del siblings[sequence.sequence_id]
        if not siblings:
            del self._by_request[sequence.request_id]

    def _enqueue(self, sequence: Sequence) -> None:
        self._waiting[sequence.sequence_id] = sequence
        self._policy.add(sequence)
        self._num_queued_tokens += sequence.num_prompt

    def _dequeue(self, sequence: Sequence) -> None:
        del self._waiting[sequence.sequence_id]
        self._policy.remove(sequence)
        self._num_queued_tokens -= sequence.num_prompt

    def _preempt(self, sequence: Sequence, now_s: float) -> None:
        del self._running[sequence.sequence_id]
        self._blocks.leave(sequence)
        sequence.num_preemptions += 1
        self._num_preemptions += 1
        self._enqueue(sequence)
        if sequence.first_token_s is None:
            sequence.clock.enter(now_s, KV_PRESSURE)

    def _start(self, row: RowPlan, now_s: float) -> Sequence:
        sequence = self._waiting[row.sequence_id]
        self._dequeue(sequence)
        self._running[row.sequence_id] = sequence
        self._blocks.start(sequence, row.num_computed, row.block_ids)
        if sequence.started_s is None:
            sequence.started_s = now_s
            sequence.num_cached = row.num_computed
            self._num_queried += sequence.num_prompt
            self._num_hit += row.num_computed
        return sequence

    def _charge(self, sequence: Sequence, row: RowPlan, num_drawn: int) -> None:
        is_answer = row.num_new == 1 and sequence.num_computed > sequence.num_prompt
        self._policy.charge(sequence.tenant, 0 if is_answer else row.num_new, num_drawn)

    def _tell_clocks(self, schedule: Schedule, now_s: float) -> None:
        """To those without a first token: what the step that begins spends their time on."""
        rows = {row.sequence_id: row.num_new for row in schedule.step.rows}
        num_answer = sum(
            self._running[sequence_id].first_token_s is not None and num_new == 1
            for sequence_id, num_new in rows.items()
        )
        num_prompt = sum(rows.values()) - num_answer
        for sequence_id, num_new in rows.items():
            sequence = self._running[sequence_id]
            if sequence.first_token_s is None:
                sequence.clock.enter(now_s, step_mix(num_new, num_prompt - num_new, num_answer))
        full = step_mix(0, num_prompt, num_answer)
        for sequence_id, hold in schedule.held:
            held = self._running.get(sequence_id) or self._waiting.get(sequence_id)
            if held is not None and held.first_token_s is None:
                held.clock.enter(now_s, _held_mix(hold, full))

    def _record(self, sequence: Sequence, row: RowPlan, result: RowResult, now_s: float) -> list[Event]:
        """Append what the row's outputs gave; events when the scores are complete or a token came."""
        drawn: list[TokenResult] = []
        for output, token in zip(row.outputs, result.outputs, strict=True):
            (sequence.scores if output.draw is None else drawn).append(token)
        events: list[Event] = []
        if sequence.owes_scores and len(sequence.scores) == sequence.num_to_score:
            events.append(PromptScored(sequence.request_id, tuple(sequence.scores)))
            sequence.owes_scores = False
        if drawn:
            sequence.tokens[-1] = drawn[0].token
            if sequence.first_token_s is None:
                sequence.first_token_s = now_s
                wait = sequence.clock.split(now_s)
                events.append(
                    FirstToken(
                        sequence.request_id,
                        sequence.index,
                        now_s,
                        wait,
                        sequence.num_cached,
                        sequence.started_s,
                        sequence.foreseen_s,
                    )
                )
            elif sequence.last_token_s is not None:
                self._gaps.append(now_s - sequence.last_token_s)
            sequence.last_token_s = now_s
            events.append(TokenEvent(sequence.request_id, sequence.index, tuple(drawn)))
        return events


def _filled(row: RowPlan, sequence: Sequence) -> RowPlan:
    """The row with what the last step drew in place of UNKNOWN, in its tokens and in its draw's history."""
    if row.tokens[-1] != UNKNOWN:
        return row
    token = sequence.tokens[row.num_computed + row.num_new - 1]
    outputs = tuple(
        output if output.draw is None or not output.draw.history else with_history(output, sequence.tokens)
        for output in row.outputs
    )
    return RowPlan(row.sequence_id, (*row.tokens[:-1], token), row.num_computed, row.block_ids, outputs)


def _held_mix(hold: Hold, full: Mix) -> Mix:
    if hold is Hold.BLOCKS:
        return KV_PRESSURE
    return OTHER_PROMPTS if hold is Hold.PREFIX else full


def _finished(sequence: Sequence, reason: FinishReason, now_s: float) -> Finished:
    return Finished(
        request_id=sequence.request_id,
        index=sequence.index,
        reason=reason,
        num_prompt=sequence.num_prompt,
        num_output=sequence.num_output,
        num_cached=sequence.num_cached,
        num_preemptions=sequence.num_preemptions,
        times=SequenceTimes(
            arrival_s=sequence.arrival_s,
            started_s=sequence.started_s,
            first_token_s=sequence.first_token_s,
            end_s=now_s,
        ),
    )

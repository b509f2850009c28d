# SPDX-License-Identifier: Apache-2.0
"""Decides what one step computes, and changes nothing: a plan can be thrown away. Running answers each get
their next token first; prompts share as many tokens as fit into the time that an answer may wait. When no
block is left for one, the running sequence placed worst is preempted: it keeps its tokens and computes them
again. The one placed first can always go on, because the door refuses what does not fit into all blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.core.config import EngineConfig
from headrace.core.plan import BlockCopy, RowPlan, StepPlan
from headrace.engine.budget import ScoreBudget
from headrace.engine.pending import PendingBlocks, next_key, wanted_keys
from headrace.engine.placement import Placement, find_placement, fitted
from headrace.engine.policy import Policy, share_prompt_tokens
from headrace.engine.rates import StepCost
from headrace.engine.sampling import outputs_of
from headrace.engine.schedule import Hold, Schedule
from headrace.engine.sequence import Sequence
from headrace.kv.block_pool import BlockPool
from headrace.kv.draft import BlockDraft
from headrace.kv.prefix_index import PrefixIndex

# While nobody is in the middle of an answer, a step may take this many times as long: only newcomers and
# aborts wait for its end.
IDLE_STEP_FACTOR = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a planner may look at. The scheduler is the one who changes it."""

    config: EngineConfig
    pool: BlockPool
    index: PrefixIndex | None  # None: prefixes are not reused
    policy: Policy[Sequence]
    cost: StepCost
    running: Mapping[int, Sequence]
    pending: PendingBlocks
    max_tokens: int  # of a sequence
    vocab_size: int


@dataclass(frozen=True, slots=True)
class _Newcomer:
    sequence: Sequence
    placement: Placement


class Planner:
    """Makes one plan, then is thrown away."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._draft = BlockDraft(view.pool)
        self._scores = ScoreBudget()
        self._held: dict[int, Hold] = {}
        self._starting: set[bytes] = set()  # keys of what newcomers are to compute
        self._preempted: list[Sequence] = []
        self._rows: list[RowPlan] = []
        self._copies: list[BlockCopy] = []

    def plan(self) -> Schedule:
        view = self._view
        running = [s for s in sorted(view.running.values(), key=view.policy.rank) if not s.is_full]
        newcomers, displaced = self._newcomers()
        shares = self._shares(running, newcomers)
        self._plan_running(running, shares, displaced)
        if not self._preempted:
            for newcomer in newcomers:
                self._start(newcomer, shares.get(newcomer.sequence.sequence_id, 0))
        step = StepPlan(
            rows=tuple(self._rows),
            preempted=tuple(sequence.sequence_id for sequence in self._preempted),
            copies=tuple(self._copies),
        )
        return Schedule(step=step, held=tuple(self._held.items()))

    # ---- who could start ----

    def _newcomers(self) -> tuple[list[_Newcomer], Sequence | None]:
        """The waiting sequences that can start, in the policy's order and without overtaking for want of
        blocks; and the running one that must make place for the first that cannot, if the policy says so."""
        view = self._view
        newcomers: list[_Newcomer] = []
        num_promised = sum(self._num_missing(sequence) for sequence in view.running.values())
        for sequence in view.policy.waiting():
            if len(view.running) + len(newcomers) >= view.config.max_num_seqs:
                return newcomers, self._displaced(sequence)
            num_places = min(sequence.num_known + 1, view.max_tokens)
            found = find_placement(sequence, view.index, self._draft, view.pool.block_size, num_places)
            if view.index is not None and self._is_on_its_way(sequence, found):
                self._held[sequence.sequence_id] = Hold.PREFIX
                continue
            num_free = self._draft.num_left - num_promised
            placement = fitted(found, self._draft, num_free, view.pool.block_size)
            if placement is None:
                self._held[sequence.sequence_id] = Hold.BLOCKS
                return newcomers, self._displaced(sequence)
            num_promised += placement.num_needed
            newcomers.append(_Newcomer(sequence, placement))
            self._starting.update(wanted_keys(sequence, len(placement.block_ids)))
        return newcomers, None

    def _is_on_its_way(self, sequence: Sequence, found: Placement) -> bool:
        """Whether the block that the sequence needs next is computed by one that runs or starts before it."""
        if found.num_hit == sequence.num_reusable:
            return False
        key = next_key(sequence, len(found.block_ids))
        if key is None:
            return False
        if key in self._starting:
            return True
        owner = self._view.pending.owner(key)
        return owner is not None and self._view.policy.rank(owner) < self._view.policy.rank(sequence)

    def _displaced(self, waiting: Sequence) -> Sequence | None:
        view = self._view
        if not view.running:
            return None
        worst = max(view.running.values(), key=view.policy.rank)
        return worst if view.policy.may_displace(waiting, worst) else None

    def _num_missing(self, sequence: Sequence) -> int:
        """Blocks a running sequence lacks for the tokens it knows and the next one."""
        num_places = min(sequence.num_known + 1, self._view.max_tokens)
        return max(self._view.pool.blocks_for(num_places) - len(sequence.lease.block_ids), 0)

    # ---- who gets how many tokens ----

    def _shares(self, running: list[Sequence], newcomers: list[_Newcomer]) -> dict[int, int]:
        """Tokens by sequence id. One for each whose next token is the only one left to compute; the
        others, whatever they are in the middle of, share what is left of the step."""
        view = self._view
        left = {s.sequence_id: self._scores.cap(s, s.num_left) for s in running}
        for newcomer in newcomers:
            sequence, num_hit = newcomer.sequence, newcomer.placement.num_hit
            left[sequence.sequence_id] = self._scores.cap(sequence, sequence.num_known - num_hit)
        candidates = [*running, *(newcomer.sequence for newcomer in newcomers)]
        candidates.sort(key=view.policy.rank)
        answers = [s for s in candidates if left[s.sequence_id] == 1]
        prompts = [s for s in candidates if left[s.sequence_id] > 1]
        shares = {s.sequence_id: 1 for s in answers[: view.config.max_num_batched_tokens]}
        if prompts:
            context = prompts[0].num_known - left[prompts[0].sequence_id]
            num_tokens = min(
                view.config.max_num_batched_tokens - len(shares), self._num_prompt_tokens(answers, context)
            )
            wanted = [left[s.sequence_id] for s in prompts]
            for sequence, share in zip(prompts, share_prompt_tokens(wanted, num_tokens), strict=True):
                shares[sequence.sequence_id] = share
        return shares

    def _num_prompt_tokens(self, answers: list[Sequence], prompt_context: int) -> int:
        """How many prompt tokens fit into a step beside these answers, behind so many of the prompt's."""
        view = self._view
        limit_s = view.config.max_itl_ms / 1000 * (1.0 if answers else IDLE_STEP_FACTOR)
        return view.cost.tokens_within(
            limit_s,
            num_decode_rows=len(answers),
            decode_context=sum(s.num_known for s in answers),
            prompt_context=prompt_context,
        )

    # ---- rows ----

    def _plan_running(
        self, running: list[Sequence], shares: dict[int, int], displaced: Sequence | None
    ) -> None:
        """Rows in the policy's order, preempting from its end when blocks run out."""
        staying = deque(running)
        if displaced is not None and displaced in staying:
            staying.remove(displaced)
            self._preempt(displaced)
        while staying:
            sequence = staying.popleft()
            share = shares.get(sequence.sequence_id, 0)
            if share == 0:
                self._held[sequence.sequence_id] = Hold.BUDGET
                continue
            while not self._add_running_row(sequence, share):
                if not staying:
                    # It sits this step out, keeping its blocks until one placed better needs them.
                    self._held[sequence.sequence_id] = Hold.BLOCKS
                    break
                self._preempt(staying.pop())

    def _preempt(self, sequence: Sequence) -> None:
        self._preempted.append(sequence)
        self._draft.give(sequence.lease.block_ids)

    def _add_running_row(self, sequence: Sequence, num_new: int) -> bool:
        """False when the draft has too few blocks."""
        block_ids = sequence.lease.block_ids
        num_lacking = self._view.pool.blocks_for(sequence.num_computed + num_new) - len(block_ids)
        if num_lacking > 0:
            taken = self._draft.take(num_lacking)
            if taken is None:
                return False
            block_ids += taken
        self._add_row(sequence, sequence.num_computed, num_new, block_ids)
        return True

    def _start(self, newcomer: _Newcomer, num_new: int) -> None:
        sequence, placement = newcomer.sequence, newcomer.placement
        taken: tuple[int, ...] | None = None
        if num_new:
            num_blocks = self._view.pool.blocks_for(placement.num_hit + num_new)
            taken = self._draft.take(num_blocks - len(placement.block_ids))
        if taken is None:
            self._held[sequence.sequence_id] = Hold.BLOCKS if num_new else Hold.BUDGET
            return
        if placement.partial is not None:
            self._copies.append(placement.copy_to(taken[0]))
        self._add_row(sequence, placement.num_hit, num_new, placement.block_ids + taken)

    def _add_row(self, sequence: Sequence, begin: int, num_new: int, block_ids: tuple[int, ...]) -> None:
        self._rows.append(
            RowPlan(
                sequence_id=sequence.sequence_id,
                tokens=tuple(sequence.tokens[begin : begin + num_new]),
                num_computed=begin,
                block_ids=block_ids,
                outputs=outputs_of(sequence, begin, num_new, self._view.vocab_size),
            )
        )

# SPDX-License-Identifier: Apache-2.0
"""Drives a scheduler over a fake backend without threads, checking the sums after every step; and the plain
answer to a request, found with no scheduler at all."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from draws import GREEDY
from headrace.core.config import EngineConfig
from headrace.core.events import Event, Finished, FinishReason, FirstToken, PromptScored, TokenEvent
from headrace.core.plan import DrawPlan, OutputPlan, RowPlan, StepPlan, TokenResult
from headrace.core.request import GenerateRequest, SamplingParams
from headrace.engine.admission import check_request, max_tokens_in, sequences_of
from headrace.engine.rates import StepCost
from headrace.engine.result_check import check_result
from headrace.engine.schedule import Schedule
from headrace.engine.scheduler import Scheduler
from headrace.kv.invariants import check_idle, check_index, check_pool
from headrace.runner.backends.fake import FakeBackend

EOS = frozenset({3, 5})


@dataclass
class Answer:
    """All that was heard of one sequence."""

    tokens: list[TokenResult] = field(default_factory=list)
    scores: tuple[TokenResult, ...] | None = None
    finished: Finished | None = None
    first: FirstToken | None = field(default=None, compare=False)

    @property
    def ids(self) -> list[int]:
        return [token.token for token in self.tokens]


class FreeOfCost(StepCost):
    """Steps are as large as the configuration allows."""

    def tokens_within(
        self, limit_s: float, *, num_decode_rows: int, decode_context: int, prompt_context: int
    ) -> int:
        return 2**20


class Driver:
    """Its clock ticks a second a step.

    Args:
        plans_ahead: as the engine does: the next step is planned while one runs, and that plan is used when
            nothing came between.
    """

    def __init__(
        self,
        backend: FakeBackend,
        config: EngineConfig,
        eos_ids: frozenset[int] = EOS,
        *,
        plans_ahead: bool = True,
    ) -> None:
        self.backend = backend
        self.config = config
        self.eos_ids = eos_ids
        self.scheduler = Scheduler(backend.info, config, FreeOfCost())
        self.answers: dict[tuple[str, int], Answer] = defaultdict(Answer)
        self.plans: list[StepPlan] = []
        self.now_s = 0.0
        self.num_ahead = 0  # steps whose plan was made ahead
        self._plans_ahead = plans_ahead
        self._ahead: Schedule | None = None
        self._next_id = itertools.count().__next__

    def add(self, request: GenerateRequest) -> None:
        check_request(request, self.backend.info)
        for sequence in sequences_of(
            request,
            self.backend.info,
            self.eos_ids,
            self._next_id,
            self.scheduler.new_lease,
            now_s=self.now_s,
        ):
            self.scheduler.add(sequence)
        self._ahead = None

    def abort(self, request_id: str) -> None:
        self._hear(self.scheduler.drop(request_id, self.now_s))
        self._ahead = None
        self.check_sums()

    def forget_prefixes(self) -> None:
        self.scheduler.forget_prefixes()
        self._ahead = None
        self.check_sums()

    def step(self, abort_meanwhile: str | None = None) -> StepPlan:
        """`abort_meanwhile`: a request that is given up while the step runs."""
        schedule, self._ahead = self._ahead, None
        if schedule is None:
            schedule = self.scheduler.plan()
            if len(self.plans) % 8 == 0:
                assert self.scheduler.plan() == schedule, "planning changes nothing"
        else:
            self.num_ahead += 1
        plan = schedule.step
        assert plan.rows or plan.preempted, "somebody can always go on"
        assert plan.num_tokens <= self.config.max_num_batched_tokens
        assert len(plan.rows) <= self.config.max_num_seqs
        self.scheduler.begin(schedule, self.now_s)
        ahead = self.scheduler.plan() if self._plans_ahead else None
        result = self.backend.execute(plan)
        check_result(plan, result, self.backend.info.vocab_size)
        self.now_s += 1.0
        if abort_meanwhile is not None:
            self._hear(self.scheduler.drop(abort_meanwhile, self.now_s))
        self._hear(self.scheduler.commit(schedule, result, self.now_s))
        if ahead is not None and ahead.step.rows:
            self._ahead = self.scheduler.filled(ahead)
        self.check_sums()
        self.plans.append(plan)
        return plan

    def run(self, max_steps: int = 10_000) -> None:
        while self.scheduler.has_work:
            self.step()
            max_steps -= 1
            assert max_steps, "no end in sight"
        check_idle(self.scheduler.pool)

    def check_sums(self) -> None:
        """Not after every step: a sum that is wrong stays wrong."""
        if len(self.plans) % 4:
            return
        check_pool(self.scheduler.pool, [sequence.lease for sequence in self.scheduler.sequences()])
        if len(self.plans) % 8 == 0:
            check_index(self.scheduler.pool, self.scheduler.index)
        for sequence in self.scheduler.running:
            num_places = len(sequence.lease.block_ids) * self.backend.info.block_size
            assert sequence.num_computed <= num_places < sequence.num_known + self.backend.info.block_size
        for sequence in self.scheduler.waiting:
            assert not sequence.lease.block_ids

    def _hear(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, PromptScored):
                answer = self.answers[event.request_id, 0]
                assert answer.scores is None
                assert not answer.tokens
                answer.scores = event.tokens
                continue
            assert isinstance(event, FirstToken | TokenEvent | Finished)
            answer = self.answers[event.request_id, event.index]
            assert answer.finished is None, "nothing after the last word"
            if isinstance(event, FirstToken):
                assert answer.first is None
                assert not answer.tokens
                answer.first = event
            elif isinstance(event, TokenEvent):
                answer.tokens += event.tokens
            else:
                answer.finished = event
                assert event.num_output == len(answer.tokens)
                assert (answer.first is None) == (not answer.tokens)


def plain_answer(
    request: GenerateRequest, index: int, backend: FakeBackend, eos_ids: frozenset[int]
) -> Answer:
    """What sequence `index` must be answered: every token from a computation of all tokens from the start,
    in the blocks 0, 1, 2, ... of a backend of its own. Knows greedy and seeded draws, no min_tokens."""
    params, info = request.params, backend.info
    assert params.seed is not None
    assert params.min_tokens == 0
    blocks = tuple(range(info.num_blocks))
    ids = list(request.prompt_ids)
    answer = Answer()
    room = max_tokens_in(info) - len(ids)
    limit = room if params.max_tokens is None else params.max_tokens
    num_top = -1 if params.logprobs is None else params.logprobs
    if params.prompt_logprobs is not None and index == 0:
        outputs = tuple(
            OutputPlan(index=i, draw=None, target=ids[i + 1], num_top=params.prompt_logprobs)
            for i in range(len(ids) - 1)
        )
        plan = StepPlan(rows=(RowPlan(0, tuple(ids), 0, blocks, outputs),))
        answer.scores = backend.execute(plan).rows[0].outputs
    reason: FinishReason = "length"
    while len(answer.tokens) < limit:
        draw = _draw(params, index, len(ids))
        output = OutputPlan(index=len(ids) - 1, draw=draw, target=None, num_top=num_top)
        plan = StepPlan(rows=(RowPlan(0, tuple(ids), 0, blocks, (output,)),))
        token = backend.execute(plan).rows[0].outputs[0]
        answer.tokens.append(token)
        ids.append(token.token)
        if token.token in params.stop_token_ids or (token.token in eos_ids and not params.ignore_eos):
            reason = "stop"
            break
    answer.finished = Finished(request.request_id, index, reason, len(request.prompt_ids), len(answer.tokens))
    return answer


def _draw(params: SamplingParams, index: int, position: int) -> DrawPlan:
    assert params.seed is not None
    return replace(
        GREEDY,
        temperature=0.0 if params.temperature < 1e-5 else params.temperature,
        seed=(params.seed + index) % 2**64,
        position=position,
        logit_bias=params.logit_bias,
    )

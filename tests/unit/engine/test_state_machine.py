# SPDX-License-Identifier: Apache-2.0
"""A hundred thousand random steps of scheduler and K/V cache over the fake backend, with pools that hold
hardly one full sequence: requests come, share beginnings, are given up before, between and during steps, the
cache is reset, plans are made ahead. The sums hold all the while; in the end every sequence has had one last
word, and the tokens it would have had alone."""

from __future__ import annotations

from functools import lru_cache

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headrace.core.config import EngineConfig, PolicyName
from headrace.core.request import GenerateRequest, SamplingParams
from headrace.runner.backends.fake import FakeBackend
from unit.engine.driver import EOS, Answer, Driver, plain_answer

NUM_STEPS = 100_000
VOCAB = 8  # so small that answers meet and end tokens are drawn
MAX_LEN = 40
BEGINNINGS = ((1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5), (6, 6, 6, 6, 6, 6, 6, 6), ())

prompts = st.builds(
    lambda beginning, length, end: (*beginning[:length], *end) or (1,),
    st.sampled_from(BEGINNINGS),
    st.integers(0, 13),
    st.lists(st.integers(0, VOCAB - 1), max_size=9),
)
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.8]),
    seed=st.integers(0, 2),
    max_tokens=st.sampled_from([None, None, 0, 1, 6, 18]),
    ignore_eos=st.booleans(),
    logprobs=st.sampled_from([None, 1]),
    prompt_logprobs=st.sampled_from([None, None, None, 0]),
)


@lru_cache(maxsize=50_000)
def answer_alone(prompt: tuple[int, ...], params: SamplingParams, index: int, block_size: int) -> Answer:
    backend = FakeBackend(
        vocab_size=VOCAB, max_model_len=MAX_LEN, block_size=block_size, num_blocks=-(-MAX_LEN // block_size)
    )
    return plain_answer(
        GenerateRequest(request_id="", prompt_ids=prompt, params=params, n=index + 1), index, backend, EOS
    )


class Steps:
    """How many were taken, by all machines together."""

    taken = 0
    ahead = 0
    preemptions = 0
    evictions = 0
    hits = 0


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        block_size=st.sampled_from([1, 3, 4]),
        spare_blocks=st.integers(0, 8),
        max_num_seqs=st.integers(1, 6),
        spare_tokens=st.integers(0, 20),
        policy=st.sampled_from(["fcfs", "fcfs", "priority", "fair", "deadline"]),
        plans_ahead=st.booleans(),
        reuses=st.sampled_from([True, True, True, False]),
    )
    def start(
        self,
        block_size: int,
        spare_blocks: int,
        max_num_seqs: int,
        spare_tokens: int,
        policy: PolicyName,
        plans_ahead: bool,
        reuses: bool,
    ) -> None:
        backend = FakeBackend(
            vocab_size=VOCAB,
            max_model_len=MAX_LEN,
            block_size=block_size,
            num_blocks=-(-MAX_LEN // block_size) + spare_blocks,
        )
        config = EngineConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + spare_tokens,
            scheduling_policy=policy,
            tenant_weights=(("a", 2.0),),
            enable_prefix_caching=reuses,
        )
        self.driver = Driver(backend, config, plans_ahead=plans_ahead)
        self.requests: list[GenerateRequest] = []
        self.aborted: set[str] = set()

    @rule(
        prompt=prompts,
        params=params,
        n=st.sampled_from([1, 1, 2, 3]),
        priority=st.integers(-1, 1),
        tenant=st.sampled_from("ab"),
        slo=st.sampled_from([None, 5.0, 50.0]),
        salt=st.sampled_from(["", "", "x"]),
    )
    def submit(
        self,
        prompt: tuple[int, ...],
        params: SamplingParams,
        n: int,
        priority: int,
        tenant: str,
        slo: float | None,
        salt: str,
    ) -> None:
        request = GenerateRequest(
            request_id=f"r{len(self.requests)}",
            prompt_ids=prompt,
            params=params,
            n=n,
            priority=priority,
            tenant=tenant,
            ttft_slo_s=slo,
            cache_salt=salt,
        )
        self.requests.append(request)
        self.driver.add(request)

    @precondition(lambda self: self.driver.scheduler.has_work)
    @rule(count=st.integers(1, 40))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.driver.scheduler.has_work:
                self.driver.step()

    @precondition(lambda self: self.driver.scheduler.has_work)
    @rule(data=st.data(), meanwhile=st.booleans())
    def abort(self, data: st.DataObject, meanwhile: bool) -> None:
        """While a step runs, or between two."""
        request = data.draw(st.sampled_from(self.requests[-8:]))
        self.aborted.add(request.request_id)
        if meanwhile:
            self.driver.step(abort_meanwhile=request.request_id)
        else:
            self.driver.abort(request.request_id)

    @rule()
    def forget_prefixes(self) -> None:
        self.driver.forget_prefixes()

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.driver.run()
        for request in self.requests:
            for index in range(request.n):
                self._check(request, index)
        scheduler = self.driver.scheduler
        Steps.taken += len(self.driver.plans)
        Steps.ahead += self.driver.num_ahead
        Steps.preemptions += scheduler.num_preemptions
        Steps.evictions += scheduler.index.num_evicted
        Steps.hits += scheduler.num_hit_tokens

    def _check(self, request: GenerateRequest, index: int) -> None:
        answer = self.driver.answers[request.request_id, index]
        block_size = self.driver.backend.info.block_size
        want = answer_alone(request.prompt_ids, request.params, index, block_size)
        assert answer.finished is not None
        if answer.finished.reason == "abort":
            assert request.request_id in self.aborted
            assert answer.tokens == want.tokens[: len(answer.tokens)]
            return
        assert answer.tokens == want.tokens
        assert answer.scores == want.scores
        assert want.finished is not None
        assert answer.finished.reason == want.finished.reason
        if answer.first is not None:
            times = answer.finished.times
            assert times is not None
            assert answer.first.wait.total_s == pytest.approx(answer.first.at_s - times.arrival_s)


def test_a_hundred_thousand_steps() -> None:
    """Machines by the dozen until the steps are taken; each of them is drawn anew."""
    while Steps.taken < NUM_STEPS:
        before = Steps.taken
        run_state_machine_as_test(
            EngineMachine,
            settings=settings(
                max_examples=60,
                stateful_step_count=60,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
        assert Steps.taken > before
    assert Steps.ahead > NUM_STEPS / 10
    assert min(Steps.preemptions, Steps.evictions, Steps.hits) > 1000

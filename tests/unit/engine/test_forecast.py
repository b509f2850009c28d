# SPDX-License-Identifier: Apache-2.0
"""What the forecast says of a newcomer's first token against what then happens: the same scheduler, its steps
taking what the costs say."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.config import EngineConfig
from headrace.core.events import FirstToken
from headrace.core.plan import BackendInfo, RowResult, StepPlan, StepResult, TokenResult
from headrace.core.request import GenerateRequest, SamplingParams
from headrace.engine import forecast
from headrace.engine.admission import sequences_of
from headrace.engine.forecast import Demand, Load, ended_s, first_token_s, started_s
from headrace.engine.gate import Gate
from headrace.engine.rates import OutputLengths, StepCost, StepShape
from headrace.engine.scheduler import Scheduler
from headrace.engine.sequence import Sequence

INFO = BackendInfo(vocab_size=1000, max_model_len=8192, block_size=16, num_blocks=10_000)
FIXED, PROMPT, DECODE, ATTENDED = 0.005, 0.0013, 0.001, 2e-7
NUM_OUTPUT = 40


def exact_s(shape: StepShape) -> float:
    return (
        FIXED + PROMPT * shape.num_prompt_tokens + DECODE * shape.num_decode_rows + ATTENDED * shape.attended
    )


def known_cost() -> StepCost:
    cost = StepCost()
    draw = random.Random(0)
    for _ in range(200):
        shape = StepShape(draw.randrange(0, 200), draw.randrange(0, 16), draw.randrange(0, 60_000))
        cost.learn(shape, exact_s(shape))
    return cost


COST = known_cost()


class Simulation:
    def __init__(self, config: EngineConfig) -> None:
        self.now_s = 0.0
        self.scheduler = Scheduler(INFO, config, COST)
        lengths = OutputLengths()
        for _ in range(500):
            lengths.learn(NUM_OUTPUT)
        self.gate = Gate(config, self.scheduler, COST, lengths)
        self._draw = random.Random(1)
        self._ids = itertools.count()

    def sequence(self, num_prompt: int) -> Sequence:
        number = next(self._ids)
        request = GenerateRequest(
            request_id=str(number),
            prompt_ids=tuple(self._draw.randrange(1000) for _ in range(num_prompt)),
            params=SamplingParams(max_tokens=NUM_OUTPUT, ignore_eos=True, seed=0),
        )
        (sequence,) = sequences_of(
            request, INFO, frozenset(), lambda: number, self.scheduler.new_lease, now_s=self.now_s
        )
        return sequence

    @property
    def num_there(self) -> int:
        return self.scheduler.num_running + self.scheduler.num_waiting

    def predicted_s(self, sequence: Sequence) -> float:
        return first_token_s(self.gate._load(sequence), COST, self.gate._demand(sequence))

    def step(self) -> list[str]:
        """Ids of those whose first token came."""
        schedule = self.scheduler.plan()
        self.scheduler.begin(schedule, self.now_s)
        rows = schedule.step.rows
        num_decode = sum(row.num_new == 1 for row in rows)
        attended = sum(row.num_new * (row.num_computed + row.num_new / 2) for row in rows)
        self.now_s += exact_s(StepShape(schedule.step.num_tokens - num_decode, num_decode, attended))
        events = self.scheduler.commit(schedule, answer(schedule.step), self.now_s)
        return [event.request_id for event in events if isinstance(event, FirstToken)]


def answer(plan: StepPlan) -> StepResult:
    rows = tuple(
        RowResult(row.sequence_id, tuple(TokenResult(7, 0.0, ()) for _ in row.outputs)) for row in plan.rows
    )
    return StepResult(rows=rows, native_s=0.0)


def test_predictions_come_true() -> None:
    """Of sixty random loads."""
    ratios = []
    for seed in range(60):
        draw = random.Random(seed)
        simulation = Simulation(EngineConfig(max_num_seqs=draw.choice([4, 16])))
        for _ in range(draw.randrange(0, 50)):
            simulation.scheduler.add(simulation.sequence(draw.choice([20, 100, 400, 1500])))
        for _ in range(draw.randrange(0, 60)):
            if simulation.scheduler.has_work:
                simulation.step()
        mine = simulation.sequence(draw.choice([20, 100, 400, 1500]))
        predicted_s = simulation.predicted_s(mine)
        begin_s = simulation.now_s
        if simulation.scheduler.has_work:  # it comes in the middle of a step
            simulation.step()
            begin_s = (begin_s + simulation.now_s) / 2
        simulation.scheduler.add(mine)
        while mine.request_id not in simulation.step():
            pass
        ratios.append(predicted_s / (simulation.now_s - begin_s))
    ratios.sort()
    assert 0.9 < ratios[30] < 1.1
    assert ratios[3] > 0.7, "seldom far too hopeful"
    assert ratios[56] < 1.6


def test_a_long_queue_costs_no_more_and_is_foreseen_in_proportion() -> None:
    """What is played through one by one is bounded; the rest is reckoned. Against playing all of it."""
    draw = random.Random(5)
    waiting = [Demand(draw.choice([20, 100, 400, 1500]), draw.uniform(1, 120)) for _ in range(800)]
    load = Load(
        running=[Demand(0, draw.uniform(1, 120), 300) for _ in range(16)],
        waiting=waiting,
        max_num_seqs=16,
        max_num_batched_tokens=512,
        limit_s=0.1,
        idle_limit_s=0.4,
    )
    reckoned_s = first_token_s(load, COST, Demand(300, 40.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecast, "MAX_EVENTS", 10_000)
        played_s = first_token_s(load, COST, Demand(300, 40.0))
    assert reckoned_s != played_s
    assert reckoned_s == pytest.approx(played_s, rel=0.15)


@given(
    running=st.lists(st.builds(Demand, st.integers(0, 900), st.floats(0, 300), st.integers(0, 4000))),
    waiting=st.lists(st.builds(Demand, st.integers(0, 900), st.floats(0, 300), st.integers(0, 4000))),
    shape=st.builds(StepShape, st.integers(0, 300), st.integers(0, 16), st.floats(0, 1e6)),
    num_prompt=st.integers(0, 8000),
)
def test_every_load_has_a_forecast(
    running: list[Demand], waiting: list[Demand], shape: StepShape, num_prompt: int
) -> None:
    """Whatever the little that is known says."""
    cost = StepCost()
    cost.learn(shape, 0.05)
    load = Load(
        running=running[:16],
        waiting=waiting,
        max_num_seqs=16,
        max_num_batched_tokens=512,
        limit_s=0.1,
        idle_limit_s=0.4,
    )
    assert 0 <= first_token_s(load, cost, Demand(num_prompt, 40.0)) < math.inf
    for num_sequences in (1, 7, 100):
        assert 0 <= ended_s(load, cost, num_sequences) < math.inf
        assert 0 <= started_s(load, cost, num_sequences) < math.inf


@pytest.mark.parametrize("num_to_end", [1, 8])
def test_room_comes_when_foreseen(num_to_end: int) -> None:
    """Of sixty random loads: when so many of all that are there have ended. Prompts that start one after
    another leave places free, which are not room in a queue."""
    ratios = []
    for seed in range(60):
        draw = random.Random(seed)
        simulation = Simulation(EngineConfig(max_num_seqs=16))
        for _ in range(draw.randrange(10, 50)):
            simulation.scheduler.add(simulation.sequence(draw.choice([20, 100, 400])))
        for _ in range(draw.randrange(0, 40)):
            simulation.step()
        predicted_s = ended_s(simulation.gate._load(None), COST, num_to_end)
        begin_s = simulation.now_s
        num_there = simulation.num_there
        while simulation.num_there > num_there - num_to_end:
            simulation.step()
        ratios.append(predicted_s / (simulation.now_s - begin_s))
    ratios.sort()
    assert 0.75 < ratios[30] < 1.4
    assert ratios[6] > 0.6, "seldom far too hopeful"
    assert ratios[53] < 2.5


def test_more_load_means_a_later_first_token() -> None:
    def load(num_waiting: int) -> Load:
        return Load(
            running=[Demand(0, 50.0, 200)] * 16,
            waiting=[Demand(200, 40.0)] * num_waiting,
            max_num_seqs=16,
            max_num_batched_tokens=512,
            limit_s=0.1,
            idle_limit_s=0.4,
        )

    predicted = [first_token_s(load(n), COST, Demand(100, 40.0)) for n in (0, 10, 100, 1000)]
    assert predicted == sorted(predicted)
    assert predicted[3] > 5 * predicted[2]
    assert first_token_s(load(5), COST, Demand(100, 1)) < first_token_s(load(5), COST, Demand(3000, 1))
    assert 0 < started_s(load(50), COST, 1) < started_s(load(50), COST, 50)
    assert started_s(load(5), COST, 1) <= first_token_s(load(5), COST, Demand(100, 1))
    ended = [ended_s(load(50), COST, n) for n in (1, 17, 60)]
    assert 0 < ended[0] < ended[1] < ended[2]


def test_nothing_is_foreseen_before_anything_is_known() -> None:
    load = Load(
        running=[], waiting=[], max_num_seqs=1, max_num_batched_tokens=8, limit_s=0.1, idle_limit_s=0.4
    )
    assert first_token_s(load, StepCost(), Demand(100, 1.0)) == 0.0
    assert ended_s(load, COST, 1) == started_s(load, COST, 1) == 0.0


def test_what_is_cached_is_not_counted() -> None:
    simulation = Simulation(EngineConfig())
    first = simulation.sequence(1600)
    cold_s = simulation.predicted_s(first)
    simulation.scheduler.add(first)
    while simulation.scheduler.has_work:
        simulation.step()
    again = simulation.sequence(1)
    again.tokens[:] = first.tokens[:1600]
    again.keys[:] = first.keys[:100]
    assert simulation.predicted_s(again) < cold_s / 10


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_who_goes_first_waits_for_fewer(policy: str) -> None:
    simulation = Simulation(EngineConfig(scheduling_policy=policy, max_num_seqs=2))  # type: ignore[arg-type]
    for _ in range(20):
        simulation.scheduler.add(simulation.sequence(400))
    plain, urgent = simulation.sequence(100), simulation.sequence(100)
    urgent.priority = -1
    ratio = simulation.predicted_s(urgent) / simulation.predicted_s(plain)
    assert ratio < 0.3 if policy == "priority" else ratio > 0.9

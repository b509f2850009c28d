# SPDX-License-Identifier: Apache-2.0
"""Learning what steps cost from noisy ones, and keeping within a limit by it. Machines are simulated."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from headrace.engine.rates import FIRST_CHUNK, Lateness, OutputLengths, StepCost, StepShape

LIMIT_S = 0.1
MACHINES = {
    "fast": (0.005, 0.0005, 0.0005, 1e-7),
    "a laptop": (0.005, 0.0013, 0.001, 2e-7),
    "slow attention": (0.008, 0.0018, 0.001, 1e-6),
}


class Machine:
    """Takes what its coefficients say, times noise."""

    def __init__(
        self, coefficients: tuple[float, float, float, float], seed: int, noise: float = 0.25
    ) -> None:
        self.coefficients = coefficients
        self.cost = StepCost()
        self.slowness = 1.0
        self._random = random.Random(seed)
        self._noise = noise

    def exact_s(self, shape: StepShape) -> float:
        fixed, prompt, decode, attended = self.coefficients
        work = prompt * shape.num_prompt_tokens + decode * shape.num_decode_rows + attended * shape.attended
        return (fixed + work) * self.slowness

    def step(self, shape: StepShape) -> float:
        step_s = self.exact_s(shape) * math.exp(self._random.gauss(0, self._noise))
        self.cost.learn(shape, step_s)
        return step_s

    def warm_up(self) -> None:
        self.step(StepShape(50, 0, 1250))
        for i in range(30):
            self.step(StepShape(0, 4, 4 * (50 + i)))

    def read_prompt(self, num_tokens: int, on_step: Callable[[int], None] = lambda done: None) -> list[float]:
        """Beside four answers; how long the steps took."""
        done, took = 0, []
        while done < num_tokens:
            on_step(done)
            chunk = self.cost.tokens_within(
                LIMIT_S, num_decode_rows=4, decode_context=800, prompt_context=done
            )
            chunk = min(chunk, 508, num_tokens - done)
            took.append(self.step(StepShape(chunk, 4, 800 + chunk * (done + chunk / 2))))
            done += chunk
        return sorted(took)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", MACHINES)
def test_answers_wait_no_longer_than_asked_while_a_long_prompt_comes_in(name: str, seed: int) -> None:
    machine = Machine(MACHINES[name], seed)
    machine.warm_up()
    took = machine.read_prompt(6000)
    assert took[int(len(took) * 0.99)] < 2 * LIMIT_S
    assert took[len(took) // 2] > 0.6 * LIMIT_S, "and the time there is is used"


@pytest.mark.parametrize("seed", range(3))
def test_a_machine_that_becomes_slow_is_followed_within_a_few_steps(seed: int) -> None:
    machine = Machine(MACHINES["a laptop"], seed, noise=0.1)
    machine.warm_up()

    def slow_down(done: int) -> None:
        machine.slowness = 2.0 if done > 1500 else 1.0

    took = machine.read_prompt(4000, slow_down)
    assert sum(step_s > 1.3 * LIMIT_S for step_s in took) <= 12


@pytest.mark.parametrize("slowness", [1.0, 2.0])
@pytest.mark.parametrize("name", MACHINES)
def test_they_do_so_too_on_a_restless_machine(name: str, slowness: float) -> None:
    """Times scatter by 30 %, and from the middle on it is as much slower. Of ten runs together."""
    took: list[float] = []
    for seed in range(10):
        machine = Machine(MACHINES[name], seed, noise=0.3)
        machine.warm_up()

        def slow_down(done: int, machine: Machine = machine) -> None:
            machine.slowness = slowness if done > 2000 else 1.0

        took += machine.read_prompt(6000, slow_down)
    took.sort()
    assert took[int(len(took) * 0.99)] < 2 * LIMIT_S
    assert took[len(took) // 2] > 0.6 * LIMIT_S


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", MACHINES)
def test_other_steps_are_foreseen_after_a_long_prompt(name: str, seed: int) -> None:
    """All of a long prompt's steps look alike; what a fresh prompt costs must not be forgotten over them."""
    machine = Machine(MACHINES[name], seed)
    machine.warm_up()
    machine.read_prompt(6000)
    for shape in (StepShape(200, 0, 20_000), StepShape(0, 4, 4000), StepShape(40, 4, 2000)):
        assert machine.cost.seconds(shape) == pytest.approx(machine.exact_s(shape), rel=0.4), shape
    chunk = machine.cost.tokens_within(LIMIT_S, num_decode_rows=4, decode_context=800, prompt_context=0)
    assert machine.exact_s(StepShape(chunk, 4, 800 + chunk**2 / 2)) < 1.5 * LIMIT_S


def test_an_outlier_ruins_nothing() -> None:
    machine = Machine(MACHINES["a laptop"], 0, noise=0.05)
    machine.warm_up()
    shape = StepShape(0, 4, 400)
    before = machine.cost.seconds(shape)
    machine.cost.learn(shape, 100 * machine.exact_s(shape))
    assert machine.cost.seconds(shape) < 2 * before


def test_before_anything_is_known() -> None:
    cost = StepCost()
    assert not cost.is_known
    assert cost.seconds(StepShape(10, 1, 10)) == 0.0
    within = cost.tokens_within(LIMIT_S, num_decode_rows=1, decode_context=1, prompt_context=0)
    assert within == FIRST_CHUNK


def test_one_step_says_something() -> None:
    cost = StepCost()
    cost.learn(StepShape(100, 0, 5000), 0.2)
    within = cost.tokens_within(LIMIT_S, num_decode_rows=0, decode_context=0, prompt_context=0)
    assert 25 <= within <= 60


def test_prompts_go_on_however_slow_the_machine_is() -> None:
    machine = Machine((1.0, 0.1, 0.1, 1e-3), 0)
    machine.warm_up()
    within = machine.cost.tokens_within(LIMIT_S, num_decode_rows=4, decode_context=800, prompt_context=9)
    beside_s = machine.exact_s(StepShape(0, 4, 800))
    assert within >= 1
    assert machine.exact_s(StepShape(within, 4, 800)) < 1.5 * beside_s


@pytest.mark.parametrize("step_s", [0.0, -1.0, math.nan, math.inf])
def test_times_that_are_none_are_not_learned(step_s: float) -> None:
    cost = StepCost()
    cost.learn(StepShape(1, 0, 0), step_s)
    assert not cost.is_known


def test_lengths_of_answers() -> None:
    lengths = OutputLengths()
    for _ in range(500):
        lengths.learn(20)
    assert lengths.mean == pytest.approx(20, rel=0.01)


@pytest.mark.parametrize("spread", [0.05, 0.3, 0.5])
def test_nineteen_of_twenty_come_within_the_learned_lateness(spread: float) -> None:
    """Errors of the forecast grow in the middle of it, and the factor follows."""
    draw, lateness = random.Random(5), Lateness()
    late = []
    for i in range(4000):
        scale = spread if i < 2000 else 1.5 * spread
        foreseen_s, actual_s = 0.5, 0.5 * math.exp(draw.gauss(0, scale))
        late.append(actual_s > lateness.factor * foreseen_s)
        lateness.learn(foreseen_s, actual_s)
    for part in (late[500:2000], late[2500:]):
        assert sum(part) / len(part) < 0.065


def test_lateness_of_forecasts_that_are_too_long_is_none() -> None:
    lateness = Lateness()
    for _ in range(1000):
        lateness.learn(1.0, 0.2)
    assert lateness.factor == 1.0

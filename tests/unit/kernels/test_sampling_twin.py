# SPDX-License-Identifier: Apache-2.0
"""The numpy definition of drawing a token: each rule by itself, on logits small enough to check by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from draws import GREEDY, PLAIN
from headrace.core.plan import DrawPlan
from headrace.kernels.ref.sampling import draw_token, log_probabilities, uniform

NEVER = -math.inf


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def drawn(logits: np.ndarray, draw: DrawPlan, num_draws: int = 300) -> set[int]:
    return {draw_token(logits, replace(draw, position=position)) for position in range(num_draws)}


class SplitMix64:
    """The published generator, stepped one number at a time."""

    def __init__(self, state: int) -> None:
        self.state = state

    def next(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) % 2**64
        z = self.state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)


def test_uniform_is_splitmix_of_a_mixed_seed() -> None:
    published = SplitMix64(1234567)
    assert [published.next(), published.next()] == [6457827717110365317, 3203168211198807973]
    for seed in (0, 1, 7, 2**63, 2**64 - 1):
        stream = SplitMix64(SplitMix64(seed).next())
        assert [uniform(seed, p) for p in range(50)] == [(stream.next() >> 11) / 2**53 for _ in range(50)]


def test_uniform_numbers_look_uniform() -> None:
    for numbers in (
        np.array([uniform(42, position) for position in range(20000)]),
        np.array([uniform(seed, 5) for seed in range(20000)]),
    ):
        assert numbers.min() >= 0
        assert numbers.max() < 1
        assert len(set(numbers)) == numbers.size
        counts = np.histogram(numbers, bins=100, range=(0, 1))[0]
        assert ((counts - 200.0) ** 2 / 200).sum() < 99 + 5 * math.sqrt(2 * 99)
        assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 5 / math.sqrt(numbers.size)


def test_neighbouring_seeds_do_not_share_a_stream() -> None:
    streams = [{uniform(seed, position) for position in range(200)} for seed in range(20)]
    assert len(set().union(*streams)) == 20 * 200


def test_greedy_takes_the_lowest_id_at_ties() -> None:
    assert draw_token(floats(1, 3, 3, 2), GREEDY) == 1
    assert draw_token(floats(1, 3, 3, 2), replace(PLAIN, top_k=1)) == 1
    assert draw_token(floats(1, 3, 3, 2), replace(PLAIN, top_p=0.0)) == 1


def test_logits_stay_untouched() -> None:
    logits = floats(1, 2, 3)
    draw_token(logits, replace(PLAIN, logit_bias=((0, 5.0),), history=(1,), repetition_penalty=2.0))
    np.testing.assert_array_equal(logits, floats(1, 2, 3))


def test_bias_forces_and_bans() -> None:
    assert draw_token(floats(1, 2, 3), replace(GREEDY, logit_bias=((0, 100.0),))) == 0
    assert drawn(floats(1, 2, 3), replace(PLAIN, logit_bias=((2, NEVER), (0, NEVER)))) == {1}
    assert draw_token(floats(1, 2, 3), replace(GREEDY, logit_bias=((2, 100.0), (2, NEVER)))) == 1


@pytest.mark.parametrize(
    ("logits", "penalty", "winner"), [((4, 3), 2.0, 1), ((-1, -1.5), 2.0, 1), ((4, 3), 1.2, 0)]
)
def test_repetition_penalty_divides_positive_and_multiplies_negative(
    logits: tuple[float, float], penalty: float, winner: int
) -> None:
    draw = replace(GREEDY, repetition_penalty=penalty, history=(0, 0, 0), num_prompt=3)  # once, not thrice
    assert draw_token(floats(*logits), draw) == winner


def test_presence_and_frequency_count_the_output_alone() -> None:
    logits = floats(3, 2.5)
    in_prompt = replace(GREEDY, presence_penalty=2.0, frequency_penalty=2.0, history=(0, 0), num_prompt=2)
    assert draw_token(logits, in_prompt) == 0
    assert draw_token(logits, replace(in_prompt, num_prompt=1)) == 1
    frequency = replace(GREEDY, frequency_penalty=0.3, history=(5, 0), num_prompt=1)
    assert draw_token(floats(3, 2.5, 0, 0, 0, 0), frequency) == 0  # 3 - 0.3
    assert draw_token(floats(3, 2.5, 0, 0, 0, 0), replace(frequency, history=(5, 0, 0))) == 1  # 3 - 0.6
    presence = replace(GREEDY, presence_penalty=0.3, history=(0, 0, 0))
    assert draw_token(logits, presence) == 0  # once whatever the count
    assert draw_token(floats(1, 2), replace(GREEDY, presence_penalty=-2.0, history=(0,))) == 0


def test_penalised_ids_without_a_logit_are_passed_over() -> None:
    draw = replace(GREEDY, repetition_penalty=2.0, frequency_penalty=1.0, history=(7, 1, 7), num_prompt=1)
    assert draw_token(floats(2, 3), draw) == 0  # 3 / 2 - 1


def test_top_k() -> None:
    logits = floats(1, 1.1, 1.2, 1.3, 1.1)
    assert drawn(logits, replace(PLAIN, top_k=2)) == {2, 3}
    assert drawn(logits, replace(PLAIN, top_k=3)) == {1, 2, 3}  # 1 and 4 tie: the lower id stays
    assert drawn(logits, replace(PLAIN, top_k=99)) == {0, 1, 2, 3, 4}


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = np.log(floats(0.1, 0.5, 0.15, 0.25))
    for top_p, kept in [(1e-6, {1}), (0.49, {1}), (0.51, {1, 3}), (0.74, {1, 3}), (0.76, {1, 2, 3})]:
        assert drawn(logits, replace(PLAIN, top_p=top_p)) == kept, top_p
    assert drawn(logits, replace(PLAIN, top_p=0.95)) == {0, 1, 2, 3}
    assert drawn(floats(0, 0, 0, 0), replace(PLAIN, top_p=0.5)) == {0, 1}  # ties: lower ids, exactly half


def test_top_p_is_of_what_top_k_left() -> None:
    logits = np.log(floats(0.4, 0.3, 0.2, 0.1))
    assert drawn(logits, replace(PLAIN, top_p=0.55)) == {0, 1}  # 0.4 is not enough
    assert drawn(logits, replace(PLAIN, top_p=0.55, top_k=2)) == {0}  # 0.4 / 0.7 is


def test_min_p() -> None:
    logits = np.log(floats(0.5, 0.3, 0.15, 0.05))
    for min_p, kept in [(0.05, {0, 1, 2, 3}), (0.2, {0, 1, 2}), (0.5, {0, 1}), (0.7, {0}), (1.0, {0})]:
        assert drawn(logits, replace(PLAIN, min_p=min_p)) == kept, min_p
    assert drawn(floats(2, 2, 1), replace(PLAIN, min_p=1.0)) == {0, 1}


def test_filters_see_the_temperature() -> None:
    logits = np.log(floats(0.5, 0.3, 0.2))
    assert drawn(logits, replace(PLAIN, min_p=0.7, temperature=5.0)) == {0, 1, 2}
    assert drawn(logits, replace(PLAIN, min_p=0.5, temperature=0.2)) == {0}


@pytest.mark.parametrize("temperature", [1e-30, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3])
def test_tiny_temperatures_are_nearly_greedy(temperature: float) -> None:
    logits = np.random.default_rng(0).normal(0, 10, 1000).astype(np.float32)
    assert drawn(logits, replace(PLAIN, temperature=temperature), 50) == {int(logits.argmax())}


def test_minus_infinity_and_nan_are_never_drawn() -> None:
    logits = floats(NEVER, math.nan, 0, NEVER, 0)
    assert drawn(logits, replace(PLAIN, temperature=100.0)) == {2, 4}
    assert draw_token(logits, GREEDY) == 2
    assert draw_token(floats(NEVER, math.nan), PLAIN) == -1
    assert draw_token(floats(NEVER, math.nan), GREEDY) == -1
    assert draw_token(floats(0, math.inf, math.inf), PLAIN) == 1


def test_log_probabilities() -> None:
    logits = floats(0, 2, 2, 1, NEVER)
    norm = math.log(1 + 2 * math.exp(2) + math.exp(1))
    logprob, top = log_probabilities(logits, 3, 3)
    assert logprob == pytest.approx(1 - norm)
    assert [token for token, _ in top] == [1, 2, 3]
    assert [value for _, value in top] == pytest.approx([2 - norm, 2 - norm, 1 - norm])
    assert log_probabilities(logits, 4, 0) == (NEVER, ())
    assert len(log_probabilities(logits, 0, 20)[1]) == 4

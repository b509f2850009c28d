# SPDX-License-Identifier: Apache-2.0
"""The native sampler against its numpy twin token by token, and against `transformers` by distribution."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers.generation import logits_process as process

from draws import PLAIN
from headrace._native import testing
from headrace.core.plan import DrawPlan
from headrace.kernels.ref import sampling as twin

Floats = npt.NDArray[np.float32]


def draw_native(logits: Floats, draw: DrawPlan) -> int:
    token: int = testing.draw_token(
        logits=logits,
        temperature=draw.temperature,
        top_k=draw.top_k,
        top_p=draw.top_p,
        min_p=draw.min_p,
        repetition_penalty=draw.repetition_penalty,
        presence_penalty=draw.presence_penalty,
        frequency_penalty=draw.frequency_penalty,
        seed=draw.seed,
        position=draw.position,
        logit_bias=list(draw.logit_bias),
        history=list(draw.history),
        num_prompt=draw.num_prompt,
    )
    return token


def random_logits(rng: np.random.Generator) -> Floats:
    """Every kind that is likely to break a sampler."""
    size = int(rng.choice([1, 2, 5, 63, 64, 65, 300, 1000]))
    logits = rng.normal(0, rng.choice([0.001, 1, 4, 20]), size).astype(np.float32)
    kind = rng.integers(8)
    if kind == 0:
        logits = np.round(logits)  # many ties
    elif kind == 1:
        logits[:] = rng.normal()  # all tie
    elif kind == 2:
        logits[rng.random(size) < 0.7] = -np.inf
    elif kind == 3:
        logits[rng.random(size) < 0.3] = np.nan
    elif kind == 4:
        logits *= np.float32(1e30)
    elif kind == 5:
        logits = np.sort(logits)[:: rng.choice([-1, 1])].copy()
    return logits


def random_draw(rng: np.random.Generator, num_vocab: int) -> DrawPlan:
    history = tuple(int(i) for i in rng.integers(0, num_vocab, rng.choice([0, 1, 20, 200])))
    bias = tuple(
        (int(token), float(rng.choice([-math.inf, -100, -1.5, 2, 100])))
        for token in rng.integers(0, num_vocab, rng.choice([0, 0, 1, 5]))
    )
    return DrawPlan(
        temperature=float(rng.choice([0, 1e-7, 1e-5, 1e-4, 0.3, 0.8, 1, 1, 1.5, 100])),
        top_k=int(rng.choice([0, 0, 0, 1, 2, 5, 40, 64, 500])),
        top_p=float(rng.choice([1, 1, 0, 1e-4, 0.1, 0.37, 0.9, 0.95, 0.9999999])),
        min_p=float(rng.choice([0, 0, 0, 0.01, 0.2, 1])),
        repetition_penalty=float(rng.choice([1, 1, 0.5, 1.1, 1.8])),
        presence_penalty=float(rng.choice([0, 0, -2, 0.6, 2])),
        frequency_penalty=float(rng.choice([0, 0, -2, 0.1, 2])),
        seed=int(rng.integers(0, 2**64, dtype=np.uint64)),
        position=int(rng.integers(0, 1 << 40)),
        logit_bias=bias,
        history=history,
        num_prompt=int(rng.integers(0, len(history) + 1)),
    )


@pytest.mark.parametrize("seed", range(8))
def test_native_draws_what_the_twin_draws(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for case in range(500):
        logits = random_logits(rng)
        draw = random_draw(rng, logits.size)
        assert draw_native(logits, draw) == twin.draw_token(logits, draw), (case, draw)


@pytest.mark.parametrize("spread", [0.0, 0.001, 1.0, 5.0])
def test_native_draws_what_the_twin_draws_from_a_large_vocabulary(spread: float) -> None:
    rng = np.random.default_rng(3)
    logits = (rng.normal(0, 1, 262144) * spread).astype(np.float32)
    plans = [
        PLAIN,
        replace(PLAIN, top_p=0.9),
        replace(PLAIN, top_p=0.999),
        replace(PLAIN, top_k=40),
        replace(PLAIN, top_k=1000, top_p=0.5),
        replace(PLAIN, top_k=200_000),
        replace(PLAIN, min_p=0.05),
    ]
    for position, plan in enumerate(plans):
        draw = replace(plan, position=position)
        assert draw_native(logits, draw) == twin.draw_token(logits, draw), draw


@pytest.mark.parametrize(("top_p", "num_kept"), [(0.25, 1), (0.5, 2), (0.50001, 3), (0.75, 3)])
def test_an_exact_top_p_is_reached_not_passed(top_p: float, num_kept: int) -> None:
    """Four equal tokens have 1/4 each: sums and limits are exact, and the lower ids stay."""
    logits = np.zeros(4, dtype=np.float32)
    drawn = {draw_native(logits, replace(PLAIN, top_p=top_p, position=i)) for i in range(200)}
    assert drawn == set(range(num_kept))


def test_uniform_has_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    for seed, position in rng.integers(0, 2**64, (2000, 2), dtype=np.uint64):
        assert testing.uniform(int(seed), int(position)) == twin.uniform(int(seed), int(position))
    assert testing.uniform(2**64 - 1, 2**64 - 1) == twin.uniform(2**64 - 1, 2**64 - 1)


def test_long_history_with_many_collisions() -> None:
    """Ids a power of two apart crowd one place of a careless hash table."""
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 1, 1 << 18).astype(np.float32)
    history = tuple(int(i) * 4096 % (1 << 18) + int(i) // 64 for i in rng.integers(0, 5000, 8000))
    for num_prompt in (0, 4000, 8000):
        draw = replace(
            PLAIN,
            history=history,
            num_prompt=num_prompt,
            repetition_penalty=1.3,
            presence_penalty=0.5,
            frequency_penalty=-0.7,
            top_k=50,
        )
        for position in range(5):
            at = replace(draw, position=position)
            assert draw_native(logits, at) == twin.draw_token(logits, at)


def transformers_probabilities(logits: Floats, draw: DrawPlan) -> npt.NDArray[np.float64]:
    """(V,) by another project's logits processors, in the documented order."""
    scores = torch.tensor(logits.astype(np.float64))[None]
    ids = torch.LongTensor([list(draw.history)])
    scores = _processors(draw)(ids, scores)
    probabilities: npt.NDArray[np.float64] = torch.softmax(scores[0], -1).numpy()
    return probabilities


def _processors(draw: DrawPlan) -> process.LogitsProcessorList:
    chosen = process.LogitsProcessorList()
    if draw.repetition_penalty != 1:
        chosen.append(process.RepetitionPenaltyLogitsProcessor(draw.repetition_penalty))
    chosen.append(process.TemperatureLogitsWarper(draw.temperature))
    if draw.top_k:
        chosen.append(process.TopKLogitsWarper(draw.top_k))
    if draw.top_p < 1:
        chosen.append(process.TopPLogitsWarper(draw.top_p))
    if draw.min_p:
        chosen.append(process.MinPLogitsWarper(draw.min_p))
    return chosen


@pytest.mark.parametrize(
    "draw",
    [
        PLAIN,
        replace(PLAIN, temperature=0.6),
        replace(PLAIN, temperature=2.5),
        replace(PLAIN, top_k=7),
        replace(PLAIN, top_p=0.8),
        replace(PLAIN, top_k=20, top_p=0.85, temperature=1.4),
        replace(PLAIN, min_p=0.1),
        replace(PLAIN, top_k=30, top_p=0.95, min_p=0.05, temperature=0.9),
        replace(PLAIN, repetition_penalty=1.7, history=(3, 9, 3, 40), num_prompt=2),
    ],
)
def test_frequencies_are_those_of_transformers(draw: DrawPlan) -> None:
    """Chi-square over 20000 draws; a wrong filter draws a token of probability 0 or misses a likely one."""
    logits = np.random.default_rng(5).normal(0, 2, 100).astype(np.float32)
    num_draws = 20000
    probabilities = transformers_probabilities(logits, draw)
    drawn = [draw_native(logits, replace(draw, position=position)) for position in range(num_draws)]
    counts = np.bincount(drawn, minlength=logits.size)
    assert not counts[probabilities == 0].any()
    likely = probabilities * num_draws >= 10
    observed = np.append(counts[likely], counts[~likely].sum())
    expected = np.append(probabilities[likely], probabilities[~likely].sum()) * num_draws
    observed, expected = observed[expected > 0], expected[expected > 0]
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    freedom = max(observed.size - 1, 1)
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("seed", range(6))
def test_log_probabilities_equal_the_twin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(200):
        logits = random_logits(rng)
        logits[rng.integers(logits.size)] = 0.5
        token, num_top = int(rng.integers(logits.size)), int(rng.choice([0, 1, 5, 20]))
        logprob, top = testing.log_probabilities(logits, token, num_top)
        want_logprob, want_top = twin.log_probabilities(logits, token, num_top)
        np.testing.assert_allclose(logprob, want_logprob, rtol=1e-6, atol=1e-6)
        assert [i for i, _ in top] == [i for i, _ in want_top]
        np.testing.assert_allclose([v for _, v in top], [v for _, v in want_top], rtol=1e-6, atol=1e-6)


def test_log_probabilities_of_nothing() -> None:
    logits = np.array([-np.inf, np.nan], dtype=np.float32)
    logprob, top = testing.log_probabilities(logits, 0, 2)
    assert math.isnan(logprob)
    assert top == []

# SPDX-License-Identifier: Apache-2.0
"""When a sequence ends and what it is told, with tokens forced by bias."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from headrace.core.config import EngineConfig
from headrace.core.plan import DrawPlan, StepPlan
from headrace.core.request import GenerateRequest, SamplingParams
from headrace.runner.backends.fake import FakeBackend
from unit.engine.driver import EOS, Answer, Driver

FORCE_EOS = ((3, 100.0),)
FORCE_9 = ((9, 100.0),)


def serve(n: int = 1, prompt: tuple[int, ...] = (1, 2, 4), **params: Any) -> Driver:
    driver = Driver(FakeBackend(), EngineConfig(max_num_seqs=4, max_num_batched_tokens=8), EOS)
    settings = SamplingParams(**({"seed": 0, "max_tokens": 6} | params))
    driver.add(GenerateRequest(request_id="r", prompt_ids=prompt, params=settings, n=n))
    driver.run()
    return driver


def answer(**params: Any) -> Answer:
    return serve(**params).answers["r", 0]


def ending(got: Answer) -> tuple[str, list[int]]:
    assert got.finished is not None
    return got.finished.reason, got.ids


def test_end_token() -> None:
    assert ending(answer(logit_bias=FORCE_EOS)) == ("stop", [3])


def test_end_token_ignored() -> None:
    assert ending(answer(logit_bias=FORCE_EOS, ignore_eos=True)) == ("length", [3] * 6)


def test_stop_token_id() -> None:
    assert ending(answer(logit_bias=FORCE_9, stop_token_ids=(9,))) == ("stop", [9])
    assert ending(answer(logit_bias=FORCE_9, stop_token_ids=(9,), ignore_eos=True)) == ("stop", [9])


def test_an_end_token_outranks_the_limit_it_comes_with() -> None:
    assert ending(answer(logit_bias=FORCE_EOS, max_tokens=1)) == ("stop", [3])
    assert ending(answer(logit_bias=FORCE_9, max_tokens=1)) == ("length", [9])


def test_min_tokens_ban_every_ending_token_whatever_the_bias_says() -> None:
    reason, ids = ending(
        answer(logit_bias=((3, 100.0), (9, 100.0)), stop_token_ids=(9,), min_tokens=4, max_tokens=8)
    )
    assert reason == "stop"
    assert len(ids) == 5
    assert not set(ids[:4]) & {3, 5, 9}


def test_min_tokens_with_ignore_eos_leave_end_tokens_alone() -> None:
    assert ending(answer(logit_bias=FORCE_EOS, ignore_eos=True, min_tokens=3)) == ("length", [3] * 6)


@pytest.mark.parametrize("prompt", [(4,), (4, 5), tuple(range(30))])
def test_scores_only(prompt: tuple[int, ...]) -> None:
    got = answer(prompt=prompt, max_tokens=0, prompt_logprobs=2)
    assert ending(got) == ("length", [])
    assert got.scores is not None
    assert [score.token for score in got.scores] == list(prompt[1:])
    assert all(len(score.top) == 2 and score.logprob < 0 for score in got.scores)


def test_nothing_at_all() -> None:
    got = answer(max_tokens=0)
    assert ending(got) == ("length", [])
    assert got.scores is None


def test_prompt_is_scored_once_for_n_answers() -> None:
    driver = serve(n=3, prompt_logprobs=0)
    assert [driver.answers["r", index].scores is None for index in range(3)] == [False, True, True]


def test_n_answers_are_those_of_seeds_that_count_up() -> None:
    """Wrapping at 2**64; negative seeds too (cases C2, C4)."""
    for first in (7, -1, 2**64 - 2):
        together = serve(n=3, seed=first, temperature=1.0, ignore_eos=True)
        ids = [together.answers["r", index].ids for index in range(3)]
        assert ids == [
            answer(seed=(first + k) % 2**64, temperature=1.0, ignore_eos=True).ids for k in range(3)
        ]
        assert len(set(map(tuple, ids))) == 3


def test_answers_without_a_seed_differ() -> None:
    ids = [tuple(answer(seed=None, temperature=1.0, ignore_eos=True).ids) for _ in range(4)]
    assert len(set(ids)) > 1


def draws(**params: Any) -> list[DrawPlan]:
    driver = serve(**params)

    def of(plan: StepPlan) -> list[DrawPlan]:
        return [output.draw for row in plan.rows for output in row.outputs if output.draw is not None]

    return [draw for plan in driver.plans for draw in of(plan)]


def test_a_draw_says_everything() -> None:
    first, second = draws(
        max_tokens=2,
        temperature=0.5,
        top_k=-1,
        top_p=0.9,
        min_p=0.1,
        seed=-1,
        repetition_penalty=1.1,
        logit_bias=((8, 50.0), (9, 50.0)),
        ignore_eos=True,
    )
    assert first == DrawPlan(
        temperature=0.5,
        top_k=0,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        seed=2**64 - 1,
        position=3,
        logit_bias=((8, 50.0), (9, 50.0)),
        history=(1, 2, 4),
        num_prompt=3,
    )
    assert second == replace(first, position=4, history=second.history)
    assert second.history[:3] == (1, 2, 4)
    assert second.history[3] in (8, 9)


@pytest.mark.parametrize("greedy", [{"temperature": 0}, {"temperature": 9e-6}, {"top_p": 0}, {"top_k": 1}])
def test_greedy_in_every_spelling(greedy: dict[str, float]) -> None:
    for draw in draws(**({"min_p": 0.2, "top_p": 0.5} | greedy)):
        assert (draw.temperature, draw.top_k, draw.top_p, draw.min_p) == (0.0, 0, 1.0, 0.0)
        assert draw.history == ()


def test_bans_are_infinite() -> None:
    first, second, *_ = draws(min_tokens=1, logit_bias=((3, 5.0), (8, 1.0)), ignore_eos=False)
    assert dict(first.logit_bias) == {3: -math.inf, 5: -math.inf, 8: 1.0}
    assert second.logit_bias == ((3, 5.0), (8, 1.0))

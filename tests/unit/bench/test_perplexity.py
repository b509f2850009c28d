# SPDX-License-Identifier: Apache-2.0
"""Which tokens count for perplexity, and that cutting a window into steps changes nothing."""

from __future__ import annotations

import math

import pytest

from headrace.bench import perplexity as subject
from headrace.bench.perplexity import (
    check_fits,
    cut_windows,
    first_scored,
    first_windows,
    perplexity,
    token_nlls,
)
from headrace.core.errors import ConfigError
from headrace.core.plan import OutputPlan, RowPlan, StepPlan
from headrace.runner.backends.fake import FakeBackend

TEXT = tuple(i * 7 % 64 for i in range(200))


def nll_after(tokens: tuple[int, ...], target: int) -> float:
    """Of one token, in a step of its own on a fresh backend."""
    output = OutputPlan(index=len(tokens) - 1, draw=None, target=target, num_top=0)
    row = RowPlan(sequence_id=0, tokens=tokens, num_computed=0, block_ids=tuple(range(64)), outputs=(output,))
    return -FakeBackend().execute(StepPlan((row,))).rows[0].outputs[0].logprob


def test_windows_are_whole_and_do_not_overlap() -> None:
    assert cut_windows(TEXT, 64, None) == [TEXT[0:64], TEXT[64:128], TEXT[128:192]]


def test_bos_takes_the_place_of_each_first_token() -> None:
    assert cut_windows(TEXT, 64, 1) == [(1, *TEXT[1:64]), (1, *TEXT[65:128]), (1, *TEXT[129:192])]


def test_first_windows_says_how_many_there_are() -> None:
    assert len(first_windows(TEXT, 64, 2, None)) == 2
    assert len(first_windows(TEXT, 64, None, None)) == 3
    for window, num_windows in [(64, 4), (64, 0), (64, -1), (512, None), (512, 1)]:
        with pytest.raises(ConfigError, match="200 tokens"):
            first_windows(TEXT, window, num_windows, None)
    with pytest.raises(ConfigError, match="at least 3"):
        first_windows(TEXT, 2, None, None)


def test_the_second_half_is_scored_as_llama_cpp_counts_it() -> None:
    """For a window of 512 its tool scores 255 tokens: those at 257 .. 511 counted from 0."""
    assert first_scored(512) == 257
    assert len(token_nlls(FakeBackend(), TEXT[:64], first_scored(64))) == 31


@pytest.mark.parametrize("step_tokens", [1, 3, 16, 31, 32, 33, 64, 1000])
def test_each_token_is_scored_given_all_before_it(step_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "TOKENS_A_STEP", step_tokens)
    tokens = TEXT[:50]
    expected = [nll_after(tokens[:place], tokens[place]) for place in range(26, 50)]
    assert token_nlls(FakeBackend(), tokens, first_scored(50)) == pytest.approx(expected)


def test_a_window_after_another_is_scored_afresh() -> None:
    backend = FakeBackend()
    token_nlls(backend, TEXT[64:128], 33)
    assert token_nlls(backend, TEXT[:64], 33) == token_nlls(FakeBackend(), TEXT[:64], 33)


def test_perplexity_by_hand() -> None:
    result = perplexity([math.log(2), math.log(8)])
    assert result.value == pytest.approx(4)
    assert result.mean_nll == pytest.approx(math.log(4))
    assert result.num_scored == 2
    # standard deviation of (ln 2, ln 8) is ln 4 / sqrt 2; over sqrt 2 tokens, times the value
    assert result.standard_error == pytest.approx(4 * math.log(4) / 2)
    assert perplexity([0.5]).standard_error == 0


def test_a_window_must_fit() -> None:
    check_fits(FakeBackend(), 256)
    with pytest.raises(ConfigError, match="takes 256"):
        check_fits(FakeBackend(), 257)
    with pytest.raises(ConfigError, match="takes 32"):
        check_fits(FakeBackend(num_blocks=8), 64)

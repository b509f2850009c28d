# SPDX-License-Identifier: Apache-2.0
"""Cases Q on real K/V, where test_cases.py leaves something to try: what of a cached prefix is found, and
what is kept of a preempted request, must not show in any number.

Q1, Q2, Q5 to Q9: whose K/V it is does not matter; see unit/engine/test_cases_q.py and the tests it names.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import LLM, SamplingParams
from headrace.api.outputs import CompletionOutput, RequestOutput

BLOCK = 16
BLOCK_BYTES = 30 * 2 * 3 * 64 * BLOCK * 2  # SmolLM2's layers, K and V, heads and their size, f16
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=3)


def new_llm(path: Path, num_blocks: int, **config: bool | int) -> LLM:
    return LLM(
        str(path),
        max_model_len=min(num_blocks * BLOCK, 512),
        kv_cache_bytes=num_blocks * BLOCK_BYTES,
        **config,
    )  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def warm(smollm2_path: Path) -> Iterator[LLM]:
    with new_llm(smollm2_path, 500) as llm:
        yield llm


@pytest.fixture(scope="module")
def cold(smollm2_path: Path) -> Iterator[LLM]:
    """The control: nothing is ever reused."""
    with new_llm(smollm2_path, 500, enable_prefix_caching=False) as llm:
        yield llm


def prompt_of(length: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(1000, 40_000) for _ in range(length)]


def ask(llm: LLM, prompt: list[int], params: SamplingParams = GREEDY) -> RequestOutput:
    return llm.generate([prompt], params)[0]


def numbers(output: RequestOutput) -> tuple[list[CompletionOutput], object]:
    """All that must be equal to the bit."""
    return output.outputs, output.prompt_logprobs


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 48])
def test_q3_five_times_the_same(warm: LLM, cold: LLM, length: int) -> None:
    wanted = numbers(ask(cold, prompt_of(length, length)))
    for _ in range(5):
        assert numbers(ask(warm, prompt_of(length, length))) == wanted
    assert cold.model.engine.stats().num_hit_tokens == 0


@pytest.mark.parametrize("num_common", [5, 16, 20, 47])
def test_q3_a_hit_in_the_middle_of_anothers_prompt(warm: LLM, cold: LLM, num_common: int) -> None:
    """The other one is still answered, or over; it goes on unchanged behind the block that was copied."""
    common = prompt_of(num_common, 1000 + num_common)
    prompts = [common + prompt_of(40, seed) for seed in (1, 2)]
    wanted = [numbers(ask(cold, prompt)) for prompt in prompts]
    engine = warm.model.engine
    engine.reset_prefix_cache()
    before = engine.stats().num_hit_tokens
    assert [numbers(ask(warm, prompt)) for prompt in prompts] == wanted
    assert engine.stats().num_hit_tokens - before == num_common
    engine.reset_prefix_cache()
    assert [numbers(output) for output in warm.generate(prompts, GREEDY)] == wanted
    assert [numbers(ask(warm, prompt)) for prompt in prompts] == wanted


def test_q3_scores_of_a_prompt_that_is_in_the_cache(warm: LLM, cold: LLM) -> None:
    """Every token of the prompt is scored, though its K/V were there."""
    prompt = prompt_of(50, 3)
    params = SamplingParams(temperature=0, max_tokens=3, logprobs=1, prompt_logprobs=1)
    wanted = numbers(ask(cold, prompt, params))
    ask(warm, prompt)
    for _ in range(2):
        assert numbers(ask(warm, prompt, params)) == wanted
    assert wanted[1] is not None


def test_q3_a_conversation_goes_on_behind_its_own_answers(warm: LLM, cold: LLM) -> None:
    """K/V that single steps wrote are found by the next turn, and are those that one long prompt writes."""
    params = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True, logprobs=1)
    prompt = prompt_of(20, 4)
    for turn in range(4):
        before = warm.model.engine.stats().num_hit_tokens
        output = ask(warm, prompt, params)
        assert numbers(output) == numbers(ask(cold, prompt, params))
        if turn:
            # All of the turn before but its last token, which was never fed, in whole blocks.
            num_there = len(prompt) - 9 - 1
            assert warm.model.engine.stats().num_hit_tokens - before in range(
                num_there - BLOCK, num_there + 1
            )
        prompt = [*prompt, *output.outputs[0].token_ids, *prompt_of(9, turn)]


@pytest.mark.parametrize("caches", [True, False])
def test_q4_preempted_draws_and_scores_do_not_change(warm: LLM, smollm2_path: Path, caches: bool) -> None:
    """Drawn, penalized and greedy answers with log probabilities, with and without what is left in the
    cache to come back to."""
    prompts = [prompt_of(20 + 9 * number, 50 + number) for number in range(6)]
    params = [
        SamplingParams(
            temperature=0.9 * (number % 2),
            seed=number,
            frequency_penalty=0.5 * (number % 3),
            max_tokens=40,
            ignore_eos=True,
            logprobs=1,
            prompt_logprobs=0,
        )
        for number in range(6)
    ]
    with new_llm(smollm2_path, 10, enable_prefix_caching=caches) as tight:
        pressed = tight.generate(prompts, params)
        stats = tight.model.engine.stats()
    assert stats.num_blocks == stats.num_free_blocks == 10
    assert stats.num_preemptions > 0
    assert [len(output.outputs[0].token_ids) for output in pressed] == [40] * 6
    roomy = warm.generate(prompts, params)
    assert [numbers(output) for output in pressed] == [numbers(output) for output in roomy]


def test_q10_two_conversations_that_do_not_fit_into_the_cache_together(cold: LLM, smollm2_path: Path) -> None:
    """In turns, each throwing the other out: nothing is kept beyond the pool, and nothing wrong is found."""
    with new_llm(smollm2_path, 12) as small:
        engine = small.model.engine
        talks = [prompt_of(130, seed) for seed in (7, 8)]
        for _ in range(3):
            for number, talk in enumerate(talks):
                output = ask(small, talk)
                assert numbers(output) == numbers(ask(cold, talk))
                talks[number] = [*talk, *output.outputs[0].token_ids, 1000 + number]
                assert engine.stats().num_cached_blocks <= engine.stats().num_blocks == 12
        assert engine.stats().num_evicted_blocks > 20

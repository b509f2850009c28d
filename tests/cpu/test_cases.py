# SPDX-License-Identifier: Apache-2.0
"""Cases Q (scheduling, cache) and C (sampling, seeds) where real K/V and real logits matter. The others:
Q1, Q2 unit/api/test_cancel.py; Q5, Q6, Q8, Q10 unit/engine/test_cases.py; Q8 unit/api/test_taken_back.py;
C7, C9, C10 unit/api/test_http_validation.py; C11 test_padded_vocabulary.py; J8 unit/api/test_overload.py."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from headrace import LLM, SamplingParams
from headrace.api.outputs import RequestOutput
from headrace.core.errors import RequestError

PROMPT = "A list of animals: cat, dog,"
KV_BYTES_PER_BLOCK = 30 * 2 * 3 * 64 * 16 * 2  # SmolLM2's layers, heads and f16


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with LLM(str(smollm2_path), max_model_len=1024, kv_cache_bytes=2000 * KV_BYTES_PER_BLOCK) as llm:
        yield llm


def ids_of(outputs: Sequence[RequestOutput]) -> list[list[list[int]]]:
    return [[choice.token_ids for choice in output.outputs] for output in outputs]


def prompt_of(length: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(1000, 40_000) for _ in range(length)]


def exact(llm: LLM, prompt: list[int]) -> tuple[list[int], object]:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=3)
    choice = llm.generate([prompt], params)[0].outputs[0]
    return choice.token_ids, choice.logprobs


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 48, 300, 700])
def test_q3_a_warm_cache_answers_as_a_cold_one(llm: LLM, length: int) -> None:
    """Tokens and log probabilities, to the bit: whole blocks found, a part of one, all but the last token."""
    engine = llm.model.engine
    prompt = prompt_of(length, length)
    engine.reset_prefix_cache()
    cold = exact(llm, prompt)
    before = engine.stats().num_hit_tokens
    for _ in range(3):
        assert exact(llm, prompt) == cold
    assert engine.stats().num_hit_tokens - before == 3 * (length - 1)
    # Behind another's beginning that ends within a block.
    engine.reset_prefix_cache()
    exact(llm, [*prompt[: length - 3], *prompt_of(40, 1)])
    before = engine.stats().num_hit_tokens
    assert exact(llm, prompt) == cold
    assert engine.stats().num_hit_tokens - before == length - 3


def test_q3_without_a_cache(llm: LLM, smollm2_path: Path) -> None:
    with LLM(str(smollm2_path), max_model_len=1024, enable_prefix_caching=False) as plain:
        for length in (17, 32):
            prompt = prompt_of(length, length)
            assert exact(plain, prompt) == exact(llm, prompt) == exact(plain, prompt)
        assert plain.model.engine.stats().num_hit_tokens == 0


def test_q4_preempted_answers_are_whole_and_unchanged(llm: LLM, smollm2_path: Path) -> None:
    """Eight prompts and answers of up to 155 tokens in 16 blocks: hardly two fit at a time."""
    prompts = [prompt_of(20 + 5 * i, i) for i in range(8)]
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    with LLM(str(smollm2_path), max_model_len=256, kv_cache_bytes=16 * KV_BYTES_PER_BLOCK) as tight:
        pressed = ids_of(tight.generate(prompts, params))
        stats = tight.model.engine.stats()
    assert stats.num_preemptions > 0
    assert stats.num_free_blocks == stats.num_blocks == 16
    assert pressed == ids_of(llm.generate(prompts, params))
    assert all(len(choices[0]) == 100 for choices in pressed)


def test_q7_nobody_gets_anothers_answer(llm: LLM) -> None:
    """64 at once, half of them behind one beginning, each told to say its own word: as each alone."""
    words = [f"{i:02d}{'abcdefgh'[i % 8]}" for i in range(64)]
    shared = "You repeat words exactly. " * 12
    prompts = [
        f"{shared if i % 2 else ''}The word is {word}. Again, the word is" for i, word in enumerate(words)
    ]
    params = [
        SamplingParams(temperature=0.9 * (i % 3 == 0), seed=i, max_tokens=10, logprobs=1) for i in range(64)
    ]
    together = llm.generate(prompts, params)
    llm.model.engine.reset_prefix_cache()
    for i in random.Random(0).sample(range(64), 16):
        alone = llm.generate([prompts[i]], params[i])[0]
        assert alone.outputs == together[i].outputs
    assert len({output.outputs[0].text for output in together}) > 32


def test_q9_what_cannot_fit_is_refused_and_what_can_waits(smollm2_path: Path) -> None:
    """Room for one answer of full length: eight clients get theirs one after another."""
    with LLM(str(smollm2_path), kv_cache_bytes=33 * KV_BYTES_PER_BLOCK, max_model_len=512) as small:
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=12)
        outputs = small.generate([prompt_of(500, i) for i in range(8)], params)
        assert all(len(output.outputs[0].token_ids) == 12 for output in outputs)
        with pytest.raises(RequestError, match="at most 512 fit") as caught:
            small.generate([prompt_of(501, 0)], params)
        assert caught.value.code == "context_length_exceeded"


def test_c1_a_seed_holds_beside_others_without(llm: LLM) -> None:
    seeded = SamplingParams(temperature=0.8, seed=42, max_tokens=20)
    alone = llm.generate([PROMPT], seeded)[0].outputs
    for _ in range(5):
        others = [SamplingParams(temperature=1.0, max_tokens=20)] * 3
        assert llm.generate([PROMPT] * 4, [others[0], seeded, *others[1:]])[1].outputs == alone


def test_c2_seeds_are_used(llm: LLM) -> None:
    def text(seed: int | None) -> str:
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=20)
        return llm.generate([PROMPT], params)[0].outputs[0].text

    assert text(1) == text(1)
    assert text(2) == text(2)
    assert text(1) != text(2)
    assert len({text(None) for _ in range(5)}) > 1


def test_c3_order_changes_nothing(llm: LLM) -> None:
    prompts = [f"{i} {PROMPT}" for i in range(8)]
    params = [SamplingParams(temperature=1.0, seed=100 + i, max_tokens=16) for i in range(8)]
    forward = ids_of(llm.generate(prompts, params))
    backward = ids_of(llm.generate(prompts[::-1], params[::-1]))
    assert forward == backward[::-1]


def test_c4_several_answers_to_a_seed(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=7, max_tokens=16)
    first = llm.generate([PROMPT], params, n=4)[0].outputs
    assert [choice.index for choice in first] == [0, 1, 2, 3]
    assert llm.generate([PROMPT], params, n=4)[0].outputs == first
    assert len({choice.text for choice in first}) > 1
    for k, choice in enumerate(first):
        alone = llm.generate([PROMPT], replace(params, seed=7 + k))[0].outputs[0]
        assert alone.token_ids == choice.token_ids


def test_several_answers_share_their_prompt(llm: LLM) -> None:
    """Of a prompt of 200 tokens, four answers compute 200, three its last one again to draw from, and all of
    them the first four of the five that they draw."""
    engine = llm.model.engine
    before = engine.stats().num_computed_tokens
    llm.generate([prompt_of(200, 77)], SamplingParams(seed=1, max_tokens=5, ignore_eos=True), n=4)
    assert engine.stats().num_computed_tokens - before == 200 + 3 * 1 + 4 * 4


def test_c5_tiny_temperatures_are_near_greedy(llm: LLM) -> None:
    def text(temperature: float) -> str:
        params = SamplingParams(temperature=temperature, seed=3, max_tokens=12)
        return llm.generate([PROMPT], params)[0].outputs[0].text

    greedy = text(0.0)
    for temperature in (1e-7, 1e-6, 1e-5, 1e-4, 1e-3):
        assert text(temperature) == greedy


def test_c6_greedy_rows_beside_random_and_banned_ones(llm: LLM) -> None:
    banned = tuple(itertools.islice(((token, -100.0) for token in range(0, 3000, 10)), 300))
    params = [
        SamplingParams(temperature=0, max_tokens=12, logprobs=0),
        SamplingParams(temperature=1, seed=1, min_p=0.2, max_tokens=12, logprobs=0),
        SamplingParams(temperature=0, logit_bias=banned, max_tokens=12, logprobs=0),
        SamplingParams(temperature=1, seed=2, logit_bias=banned, top_k=5, max_tokens=12, logprobs=0),
    ]
    together = llm.generate([PROMPT] * 4, params)
    for i, one in enumerate(params):
        assert llm.generate([PROMPT], one)[0].outputs == together[i].outputs
    for output in together[2:]:
        assert not set(output.outputs[0].token_ids) & {token for token, _ in banned}


def test_c8_a_penalty_breaks_a_loop(llm: LLM) -> None:
    prompt = [28] * 60

    def ids(**penalty: float) -> list[int]:
        params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, **penalty)  # type: ignore[arg-type]
        return llm.generate([prompt], params)[0].outputs[0].token_ids

    plain = ids()
    assert len(set(plain)) < 6, "it loops"
    assert len(set(ids(repetition_penalty=1.8))) > 2 * len(set(plain))
    assert len(set(ids(frequency_penalty=2.0))) > 2 * len(set(plain))

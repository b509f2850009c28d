# SPDX-License-Identifier: Apache-2.0
"""Workloads are the same for the same seed, and have the lengths and the shared parts that they should."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest

from headrace.bench.call_body import Dialect
from headrace.bench.pace import poisson_arrivals
from headrace.bench.prose import words_of
from headrace.bench.request_record import Call
from headrace.bench.token_ruler import AverageRuler, CountingRuler, TokenRuler
from headrace.bench.trace import TraceRequest
from headrace.bench.trace_replay import Scale, block_tokens_of, scale_trace, trace_calls
from headrace.bench.workloads import NAMED, Draft, Workload
from headrace.core.errors import ConfigError

DIALECT = Dialect(model="tiny")


async def count_tokens(text: str) -> int:
    """A made-up tokenizer: BOS, a token for each started four letters of a word, one for a full stop."""
    return 1 + sum(-(-len(word.rstrip(".")) // 4) + word.endswith(".") for word in text.split())


def counted(text: str) -> int:
    return asyncio.run(count_tokens(text))


def make(name: str, seed: int = 0, num_requests: int = 4, ruler: TokenRuler | None = None) -> Workload:
    draft = Draft(
        dialect=DIALECT,
        ruler=ruler or CountingRuler(count_tokens, "a test"),
        seed=seed,
        num_requests=num_requests,
        output_tokens=8,
    )
    return asyncio.run(NAMED[name].make(draft))


def body(call: Call) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(call.body)
    return fields


@pytest.mark.parametrize("name", list(NAMED))
def test_the_same_seed_gives_the_same_requests(name: str) -> None:
    assert make(name) == make(name)
    assert make(name).calls[:2] == make(name, num_requests=2).calls
    assert not {call.body for call in make(name).calls} & {call.body for call in make(name, seed=1).calls}


@pytest.mark.parametrize(("name", "num_prompt"), [("idle", 520), ("unique", 270), ("shared", 1025)])
def test_lengths_are_exact(name: str, num_prompt: int) -> None:
    for call in make(name).calls:
        assert call.num_prompt == num_prompt
        assert counted(body(call)["prompt"]) == num_prompt
        assert body(call)["max_tokens"] == 8
        assert body(call)["temperature"] == 0
        assert body(call)["stream"] is True
        assert body(call)["ignore_eos"] is True


def test_unique_prompts_have_nothing_in_common() -> None:
    prompts = [body(call)["prompt"] for call in make("unique", num_requests=32).calls]
    beginnings = {" ".join(prompt.split()[:8]) for prompt in prompts}
    assert len(beginnings) == 32


def test_shared_prompts_begin_alike_and_end_unlike() -> None:
    workload = make("shared")
    (warm,) = workload.warming
    shared = body(warm)["prompt"]
    assert counted(shared) == 970
    prompts = [body(call)["prompt"] for call in workload.calls]
    assert all(prompt.startswith(shared + " ") for prompt in prompts)
    assert len({prompt[len(shared) :] for prompt in prompts}) == 4


def test_schema_replies_are_bound_to_valid_schemas() -> None:
    import jsonschema

    calls = make("schema").calls
    names = set()
    for call in calls:
        bound = body(call)["response_format"]["json_schema"]
        jsonschema.Draft202012Validator.check_schema(bound["schema"])
        names.add(bound["name"])
        assert "ignore_eos" not in body(call)
    assert len(names) == 4


def test_what_the_server_refuses_is_left_out() -> None:
    plain = Dialect(model="m", ignore_eos=False, stream_usage=False)
    draft = Draft(
        dialect=plain,
        ruler=AverageRuler(1.0, 0.0, "x"),
        seed=0,
        num_requests=1,
        output_tokens=1,
    )
    (call,) = asyncio.run(NAMED["unique"].make(draft)).calls
    assert set(body(call)) == {"model", "temperature", "stream", "prompt", "max_tokens"}


def test_average_lengths() -> None:
    ruler = AverageRuler(tokens_per_word=1.25, num_extra=1.0, source="usage")
    words = asyncio.run(ruler.fit((), 101, words_of("any")))
    assert len(words) == 80
    assert asyncio.run(ruler.fit(words, 26, words_of("any"))) == words[:20]


def test_lengths_that_no_single_word_makes_up() -> None:
    async def count_bytes(text: str) -> int:
        return len(text.encode())

    ruler = CountingRuler(count_bytes, "bytes")
    for num in range(960, 980):
        assert len(" ".join(asyncio.run(ruler.fit((), num, words_of("bytes", num))))) == num


def test_a_counter_that_never_fits() -> None:
    async def always_odd(text: str) -> int:
        return 2 * len(text.split()) + 1

    with pytest.raises(ConfigError, match="exactly 10 tokens; does odd count"):
        asyncio.run(CountingRuler(always_odd, "odd").fit((), 10, words_of(0)))


def test_words_look_like_sentences() -> None:
    text = " ".join(itertools.islice(words_of(3), 500))
    sentences = [sentence.strip() for sentence in text.split(".")[:-1]]
    assert len(sentences) > 20
    assert all(sentence[0].isupper() and sentence.isascii() for sentence in sentences)


def test_arrivals_of_a_rate() -> None:
    times = list(itertools.islice(poisson_arrivals(4.0, seed=1), 4001))
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert times[0] == 0.0
    assert min(gaps) > 0
    assert sum(gaps) / len(gaps) == pytest.approx(0.25, rel=0.05)
    # Of exponential gaps, 1/e are longer than their mean.
    assert sum(gap > 0.25 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03)
    assert times == list(itertools.islice(poisson_arrivals(4.0, seed=1), 4001))
    assert times[1] != next(itertools.islice(poisson_arrivals(4.0, seed=2), 1, None))


def request(num_prompt: int, num_output: int, *block_ids: int, at_s: float = 0.0) -> TraceRequest:
    return TraceRequest(at_s=at_s, num_prompt=num_prompt, num_output=num_output, block_ids=block_ids)


def test_a_trace_is_scaled_and_cut() -> None:
    requests = [request(1000, 100, at_s=4.0), request(3000, 100), request(100, 3000), request(3000, 3000)]
    scaled = scale_trace(requests, Scale(time=0.5, length=0.5, max_model_len=1000))
    assert [(r.at_s, r.num_prompt, r.num_output) for r in scaled.requests] == [
        (2.0, 500, 50),
        (0.0, 950, 50),
        (0.0, 50, 500),
        (0.0, 500, 500),
    ]
    assert scaled.num_clipped == 3
    assert scale_trace([request(1, 0)], Scale(length=0.1)).requests[0].num_output == 1


def test_equal_blocks_of_a_trace_are_equal_text() -> None:
    scale = Scale(length=0.125)
    assert block_tokens_of(scale) == 64
    requests = [request(512 * 2 + 400, 8, 7, 8, 9), request(512 * 2 + 80, 8, 7, 8, 11), request(512, 8, 5)]
    scaled = scale_trace(requests, scale).requests
    ruler = CountingRuler(count_tokens, "a test")
    calls = asyncio.run(trace_calls(scaled, 64, DIALECT, ruler, 0))
    first, second, third = (body(call)["prompt"] for call in calls)
    assert [counted(prompt) for prompt in (first, second, third)] == [178, 138, 64]
    common = next(n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    assert counted(first[:common]) == pytest.approx(128, abs=4)
    assert third.split()[:4] != first.split()[:4]
    assert calls == asyncio.run(trace_calls(scaled, 64, DIALECT, ruler, 0))

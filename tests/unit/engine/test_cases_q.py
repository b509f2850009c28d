# SPDX-License-Identifier: Apache-2.0
"""Cases Q over the fake backend, whose K/V are integers: warm prefixes, preemption, mixed-up answers, aborts,
full length. tests/cpu/test_cases.py has them on real K/V and says where the others are."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import pytest

from headrace.core.config import EngineConfig
from headrace.core.events import Event, Failed, Finished, FirstToken, TokenEvent
from headrace.core.plan import TokenResult
from headrace.core.request import GenerateRequest, SamplingParams
from headrace.engine.loop import Engine
from headrace.runner.backends.fake import FakeBackend
from unit.api.byte_tokenizer import VOCAB_SIZE, byte_tokenizer
from unit.api.live_server import LiveServer, running
from unit.api.slow_server import CHAT, TEXT, stats_of, wait_until
from unit.engine.driver import EOS, Answer, Driver, plain_answer

SIZE = 16
MAX_LEN = 256
ANSWER = SamplingParams(temperature=0, seed=0, max_tokens=12, ignore_eos=True, logprobs=2)


def new_backend(num_blocks: int = 64) -> FakeBackend:
    return FakeBackend(max_model_len=MAX_LEN, block_size=SIZE, num_blocks=num_blocks)


def prompt_of(length: int, seed: object) -> tuple[int, ...]:
    draw = random.Random(str(seed))
    return tuple(draw.randrange(6, 64) for _ in range(length))


def plain(request: GenerateRequest, index: int = 0) -> Answer:
    return plain_answer(request, index, new_backend(), EOS)


# ---- Q2 ----


def test_q2_a_dropped_prompt_is_not_computed_further() -> None:
    """The step that runs is the last one with anything of it, and the next one starts who came meanwhile."""
    backend = FakeBackend(max_model_len=9000, block_size=SIZE, num_blocks=600)
    driver = Driver(backend, EngineConfig(max_num_seqs=1, max_num_batched_tokens=64))
    driver.add(GenerateRequest(request_id="long", prompt_ids=prompt_of(8000, 0), params=ANSWER))
    for _ in range(5):
        driver.step()
    short = GenerateRequest(request_id="short", prompt_ids=prompt_of(20, 1), params=ANSWER)
    driver.add(short)
    driver.step(abort_meanwhile="long")
    plan = driver.step()
    assert [row.num_new for row in plan.rows] == [20]
    driver.run()
    assert sum(plan.num_tokens for plan in driver.plans) == 6 * 64 + 20 + 11
    assert driver.answers["short", 0] == plain(short)


# ---- Q3 ----


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 48])
@pytest.mark.parametrize("caches", [True, False])
def test_q3_warm_answers_are_the_cold_ones(length: int, caches: bool) -> None:
    """Five times the same prompt; every time but the first only its last token is computed."""
    driver = Driver(new_backend(), EngineConfig(enable_prefix_caching=caches))
    prompt = prompt_of(length, length)
    for turn in range(5):
        request = GenerateRequest(request_id=f"r{turn}", prompt_ids=prompt, params=ANSWER)
        driver.add(request)
        driver.run()
        answer = driver.answers[f"r{turn}", 0]
        assert answer.tokens == plain(request).tokens
        assert answer.first is not None
        assert answer.first.num_cached == (length - 1 if caches and turn else 0)


@pytest.mark.parametrize("num_common", [1, 15, 16, 17, 31, 32, 33, 47])
def test_q3_a_hit_in_the_middle_of_anothers_prompt(num_common: int) -> None:
    """Two that part at any place, after each other and at once, in both orders."""
    common = prompt_of(num_common, "common")
    ids = {name: (*common, mark, *prompt_of(30, name)) for mark, name in enumerate("ab", start=7)}
    for at_once in (False, True):
        for order in ("ab", "ba"):
            driver = Driver(new_backend(), EngineConfig(max_num_batched_tokens=24))
            requests = [GenerateRequest(request_id=x, prompt_ids=ids[x], params=ANSWER) for x in order]
            for request in requests:
                driver.add(request)
                if not at_once:
                    driver.run()
            driver.run()
            for request in requests:
                assert driver.answers[request.request_id, 0].tokens == plain(request).tokens
            second = driver.answers[order[1], 0].first
            assert second is not None
            if not at_once:
                assert second.num_cached == num_common


def test_q3_a_conversation_goes_on_behind_its_own_answers() -> None:
    """What was generated is found as well as what was sent; the last token of an answer was never fed."""
    driver = Driver(new_backend(), EngineConfig())
    prompt = prompt_of(20, "talk")
    for turn in range(5):
        request = GenerateRequest(request_id=f"t{turn}", prompt_ids=prompt, params=ANSWER)
        driver.add(request)
        driver.run()
        answer = driver.answers[f"t{turn}", 0]
        assert answer.tokens == plain(request).tokens
        assert answer.first is not None
        assert answer.first.num_cached == (len(prompt) - 10 if turn else 0)
        prompt = (*prompt, *answer.ids, *prompt_of(9, turn))


# ---- Q4 ----


def test_q4_what_a_preempted_request_already_gave_stays_given() -> None:
    """Scores of the prompt, several answers, drawn tokens with their log probabilities; once each."""
    driver = Driver(new_backend(num_blocks=24), EngineConfig(max_num_seqs=8, max_num_batched_tokens=48))
    params = replace(ANSWER, max_tokens=100, prompt_logprobs=1)
    requests = [
        GenerateRequest(
            request_id=f"r{i}",
            prompt_ids=prompt_of(30 + 7 * i, i),
            params=replace(params, temperature=0.9 * (i % 2), seed=i),
            n=1 + i % 2,
        )
        for i in range(6)
    ]
    for request in requests:
        driver.add(request)
    driver.run()
    assert driver.scheduler.num_preemptions > 3
    for request in requests:
        for index in range(request.n):
            answer, wanted = driver.answers[request.request_id, index], plain(request, index)
            assert (answer.tokens, answer.scores) == (wanted.tokens, wanted.scores)
    finished = [answer.finished for answer in driver.answers.values()]
    assert {end.num_output for end in finished if end} == {100}
    assert sum(end.num_preemptions for end in finished if end) == driver.scheduler.num_preemptions


# ---- Q7 ----


def test_q7_each_client_gets_its_own_answer() -> None:
    """64 requests over HTTP, 16 and 32 at a time. Every other one has its word forced; the rest, which differ
    behind a common beginning, must say what they say alone."""
    backend = FakeBackend(vocab_size=VOCAB_SIZE, max_model_len=MAX_LEN, block_size=SIZE, num_blocks=400)
    config = EngineConfig(max_num_seqs=16, max_num_batched_tokens=64)
    with running(backend, byte_tokenizer(), config=config) as server:
        alone = [_ask(server, number) for number in range(64)]
        assert len(set(alone)) == 64
        for num_clients in (16, 32):
            order = random.Random(num_clients).sample(range(64), 64)
            with ThreadPoolExecutor(num_clients) as clients:
                answers = list(clients.map(lambda number: _ask(server, number), order))
            assert answers == [alone[number] for number in order]
        assert stats_of(server).num_hit_tokens > 0


def _ask(server: LiveServer, number: int) -> tuple[int, ...]:
    forced = 65 + number // 2 if number % 2 == 0 else None
    text = ("All of them begin with this. " if number % 4 > 1 else "") + f"word {number}"
    body: dict[str, Any] = {"max_tokens": 10, "seed": 3, "ignore_eos": True, "return_token_ids": True}
    path = CHAT if number % 8 > 3 else TEXT
    body |= {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    if forced is not None:
        body["logit_bias"] = {str(forced): 100}
    if number % 3:
        choices = server.post(path, body).json()["choices"]
        ids = choices[0]["token_ids"]
    else:
        chunks = [choice for chunk in server.stream(path, body) for choice in chunk["choices"]]
        ids = [token for choice in chunks for token in choice.get("token_ids") or ()]
    assert len(ids) == 10
    assert forced is None or set(ids) == {forced}
    return tuple(ids)


# ---- Q8 ----


class _Ends:
    """A sink for all: gives a request up as soon as it has said so many tokens, or once it is over."""

    def __init__(self, abort: Callable[[str], None]) -> None:
        self.by_request: dict[str, list[str]] = {}
        self.num_left: dict[str, int] = {}
        self.changed = threading.Condition()
        self._abort = abort

    def __call__(self, event: Event) -> None:
        name = event.request_id
        if isinstance(event, TokenEvent) and name in self.num_left:
            self.num_left[name] -= 1
            if self.num_left[name] == 0:
                self._abort(name)
        elif isinstance(event, Finished | Failed):
            with self.changed:
                reason = event.reason if isinstance(event, Finished) else "failed"
                self.by_request.setdefault(name, []).append(reason)
                self.changed.notify_all()
            self._abort(name)  # it is over: nothing comes of it


def test_q8_a_thousand_requests_half_of_them_given_up_anywhere() -> None:
    """Before they start, at their first, fifth or last token, after their end; from the sink and from
    other threads. Then all blocks are back, and the longest possible request is answered as alone."""
    backend = FakeBackend(max_model_len=160, block_size=4, num_blocks=60)
    config = EngineConfig(max_num_seqs=8, max_num_batched_tokens=32)
    engine = Engine(backend, config, EOS)
    ends = _Ends(engine.abort)
    engine.start()
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda part: _send_and_abort(engine, ends, part), range(4)))
        with ends.changed:
            assert ends.changed.wait_for(lambda: len(ends.by_request) == 1000, 30)
        reasons = [reason for heard in ends.by_request.values() for reason in heard]
        assert len(reasons) == 1000, "one last word each"
        assert reasons.count("failed") == 0
        assert reasons.count("abort") > 200
        wait_until(lambda: engine.stats().num_free_blocks == 60)
        stats = engine.stats()
        assert (stats.num_running, stats.num_waiting, stats.num_queued_tokens) == (0, 0, 0)
        longest = GenerateRequest(
            request_id="longest", prompt_ids=prompt_of(100, 0), params=replace(ANSWER, max_tokens=60)
        )
        heard: SimpleQueue[Event] = SimpleQueue()
        engine.submit(longest, heard.put)
        tokens: list[TokenResult] = []
        while isinstance(event := heard.get(timeout=20), FirstToken | TokenEvent):
            tokens += event.tokens if isinstance(event, TokenEvent) else ()
        alone = FakeBackend(max_model_len=160, block_size=4, num_blocks=60)
        assert tokens == plain_answer(longest, 0, alone, EOS).tokens
    finally:
        engine.close()


def _send_and_abort(engine: Engine, ends: _Ends, part: int) -> None:
    draw = random.Random(part)
    for number in range(250):
        name = f"{part}.{number}"
        way = draw.randrange(8)
        if way in (1, 2, 3):
            ends.num_left[name] = (1, 5, 12)[way - 1]
        request = GenerateRequest(
            request_id=name, prompt_ids=prompt_of(draw.randrange(1, 60), number % 20), params=ANSWER
        )
        engine.submit(request, ends)
        if way == 0:
            engine.abort(name)
        elif way == 4:
            engine.abort(f"{part}.{draw.randrange(number + 1)}")


# ---- Q9 ----


def test_q9_full_length_requests_queue_and_what_is_too_long_is_refused() -> None:
    """Blocks for one request of full length, eight clients of full length, and a chat of 50 kB."""
    backend = FakeBackend(vocab_size=VOCAB_SIZE, max_model_len=MAX_LEN, block_size=SIZE, num_blocks=16)
    with running(backend, byte_tokenizer(), config=EngineConfig(max_num_batched_tokens=64)) as server:
        big = {"messages": [{"role": "user", "content": "x" * 50_000}], "max_tokens": 4}
        refused = server.post(CHAT, big)
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        assert str(MAX_LEN) in refused.json()["error"]["message"]

        def full(number: int) -> list[int]:
            prompt = f"{number}" + "y" * 200
            body = {"prompt": prompt, "seed": 1, "ignore_eos": True, "return_token_ids": True}
            choice = server.post(TEXT, body).json()["choices"][0]
            assert choice["finish_reason"] == "length"
            ids: list[int] = choice["token_ids"]
            return ids

        alone = [full(number) for number in range(8)]
        assert {len(ids) for ids in alone} == {MAX_LEN - 201}
        with ThreadPoolExecutor(8) as clients:
            assert list(clients.map(full, range(8))) == alone
        assert stats_of(server).num_free_blocks == 16
        assert server.http.get("/health").status_code == 200

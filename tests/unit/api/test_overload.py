# SPDX-License-Identifier: Apache-2.0
"""More than the server may hold is refused at once, in words a client can act on; the rest is served."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from headrace.text.tokenizer import Place
from unit.api.byte_tokenizer import ByteEncoder, byte_tokenizer
from unit.api.live_server import LiveServer
from unit.api.slow_server import CHAT, TEXT, slow_server, stats_of, wait_until

MESSAGES = [{"role": "user", "content": "hi"}]
BUSY = {"prompt": ["a"] * 2, "ignore_eos": True, "max_tokens": 900}


class _CountingEncoder(ByteEncoder):
    def __init__(self) -> None:
        self.num_calls = 0

    def encode(self, text: str, place: Place) -> list[int]:
        self.num_calls += 1
        return super().encode(text, place)


@pytest.fixture(scope="module")
def encoder() -> _CountingEncoder:
    return _CountingEncoder()


@pytest.fixture(scope="module")
def server(encoder: _CountingEncoder) -> Iterator[LiveServer]:
    """Two run, two may wait."""
    tokenizer = byte_tokenizer(encoder=encoder)
    with slow_server(num_seqs=2, tokenizer=tokenizer, max_num_queued_reqs=2) as server:
        yield server


@pytest.fixture
def full(server: LiveServer) -> Iterator[LiveServer]:
    """The server with its queue full."""
    with ThreadPoolExecutor() as pool:
        answers = []
        for name, num_waiting in (("first", 0), ("second", 2)):
            headers = {"X-Request-Id": name}
            answers.append(pool.submit(httpx.post, server.url + TEXT, json=BUSY, headers=headers, timeout=20))
            wait_until(lambda: stats_of(server).num_running == 2)
            wait_until(lambda want=num_waiting: stats_of(server).num_waiting == want)  # type: ignore[misc]
        yield server
        for name, answer in zip(("first", "second"), answers, strict=True):
            assert server.post(f"/v1/requests/{name}/cancel", None).status_code == 200
            assert answer.result().status_code == 200, "who was let in is served"
    wait_until(lambda: stats_of(server).num_running + stats_of(server).num_waiting == 0)


def check_429(response: httpx.Response, code: str) -> dict[str, Any]:
    assert response.status_code == 429, response.text
    assert response.headers["content-type"] == "application/json"
    error: dict[str, Any] = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code", "predicted_ttft_ms", "retry_after_ms"}
    assert (error["type"], error["code"]) == ("rate_limit_error", code)
    retry_after = response.headers["retry-after"]
    assert retry_after.isdecimal()
    assert int(retry_after) >= 1
    assert 0 <= int(retry_after) * 1000 - error["retry_after_ms"] <= 1000 or error["retry_after_ms"] < 1000
    assert response.headers["x-request-id"]
    return error


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_full_queue(full: LiveServer, encoder: _CountingEncoder, path: str, stream: bool) -> None:
    """J8: refused before anything is done for it, also where a stream was asked for."""
    num_calls = encoder.num_calls
    body: dict[str, Any] = {"messages": MESSAGES} if path == CHAT else {"prompt": "a"}
    check_429(full.post(path, {**body, "stream": stream}), "queue_full")
    assert encoder.num_calls == num_calls
    assert full.http.get("/health").status_code == 200


def test_long_bodies_are_not_read(full: LiveServer) -> None:
    """The connection goes on with the next request all the same."""
    headers = {"Content-Type": "application/json"}
    with httpx.Client(base_url=full.url, timeout=20) as client:
        for _ in range(3):
            check_429(client.post(TEXT, content=b"x" * 2**22, headers=headers), "queue_full")
            assert client.get("/health").status_code == 200


def test_room_for_all_or_none(server: LiveServer, encoder: _CountingEncoder) -> None:
    """Of what is more than there is room for nothing is taken, and nothing tokenised."""
    with ThreadPoolExecutor() as pool:
        headers = {"X-Request-Id": "only"}
        answer = pool.submit(httpx.post, server.url + TEXT, json=BUSY, headers=headers, timeout=20)
        wait_until(lambda: stats_of(server).num_running == 2)
        num_calls, num_refused = encoder.num_calls, stats_of(server).num_refused_queue_full
        for body in ({"prompt": ["a", "b", "c"]}, {"prompt": "a", "n": 3}):
            check_429(server.post(TEXT, body), "queue_full")
        assert encoder.num_calls == num_calls
        assert stats_of(server).num_waiting == 0
        assert stats_of(server).num_refused_queue_full == num_refused + 2
        assert server.post("/v1/requests/only/cancel", None).status_code == 200
        answer.result()


def test_full_queue_of_tokens() -> None:
    with slow_server(num_seqs=1, max_num_queued_tokens=50) as server, ThreadPoolExecutor() as pool:
        body = {"prompt": "a" * 40, "ignore_eos": True}
        headers = {"X-Request-Id": "r"}
        answers = []
        for num_waiting in (0, 1):
            answers.append(pool.submit(httpx.post, server.url + TEXT, json=body, headers=headers, timeout=20))
            wait_until(lambda: stats_of(server).num_running == 1)
            wait_until(lambda want=num_waiting: stats_of(server).num_waiting == want)  # type: ignore[misc]
        check_429(server.post(TEXT, {"prompt": "b" * 11}), "queue_full")
        server.post("/v1/requests/r/cancel", None)
        assert [answer.result().status_code for answer in answers] == [200, 200]


@pytest.mark.parametrize("by", ["field", "header", "both"])
def test_target_out_of_reach(server: LiveServer, by: str) -> None:
    """The body's target outranks the header's."""
    assert server.post(TEXT, {"prompt": "a" * 64, "max_tokens": 4}).status_code == 200  # it has seen steps
    headers = {} if by == "field" else {"x-slo-ttft-ms": "1" if by == "header" else "100000"}
    fields = {} if by == "header" else {"slo_ttft_ms": 1}
    for stream in (False, True):
        body = {"prompt": "b" * 700, "stream": stream, **fields}
        response = server.http.post(TEXT, json=body, headers=headers)
        error = check_429(response, "slo_unreachable")
        assert error["param"] == "slo_ttft_ms"
        assert error["predicted_ttft_ms"] > 1
        assert float(response.headers["x-predicted-ttft-ms"]) == round(error["predicted_ttft_ms"])
    easy = {"prompt": "b", "max_tokens": 1, "slo_ttft_ms": 60_000}
    response = server.http.post(TEXT, json=easy, headers={"x-slo-ttft-ms": "1"})
    assert response.status_code == 200


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", "inf", ""])
def test_targets_that_are_none(server: LiveServer, value: str) -> None:
    response = server.http.post(TEXT, json={"prompt": "a"}, headers={"x-slo-ttft-ms": value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "x-slo-ttft-ms"


def test_openai_client(full: LiveServer) -> None:
    client = openai.OpenAI(base_url=f"{full.url}/v1", api_key="none", max_retries=0)
    for stream in (False, True):
        with pytest.raises(openai.RateLimitError) as refused:
            client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "hi"}],
                stream=stream,
            )
        assert refused.value.code == "queue_full"
        assert int(refused.value.response.headers["retry-after"]) >= 1


def test_openai_client_sends_our_fields(server: LiveServer) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    fields = {"priority": -3, "cache_salt": "mine", "slo_ttft_ms": 60_000, "return_timings": True}
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=3, extra_body=fields
    )
    assert answer.model_extra is not None
    assert answer.model_extra["timings"]["ttft_ms"] > 0
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="tiny", prompt="a", extra_body={"deterministic": True})
    assert refused.value.param == "deterministic", "this backend cannot promise it"


async def storm(server: LiveServer, body: dict[str, Any], count: int) -> list[httpx.Response]:
    """So many requests at once, and /health asked until all are answered."""
    limits = httpx.Limits(max_connections=count + 10)
    async with httpx.AsyncClient(base_url=server.url, timeout=30, limits=limits) as client:
        answers = [asyncio.ensure_future(client.post(TEXT, json=body)) for _ in range(count)]
        num_asked = 0
        while not all(answer.done() for answer in answers):
            assert (await client.get("/health")).status_code == 200
            num_asked += 1
        assert num_asked > 1
        return [answer.result() for answer in answers]


def test_a_storm_passes() -> None:
    """J8: three hundred at once where two run and four may wait. Those let in are answered, others refused,
    the server says meanwhile that it is well, and the next request is served."""
    body = {"prompt": "a", "ignore_eos": True, "max_tokens": 8}
    with slow_server(num_seqs=2, max_num_queued_reqs=4) as server:
        answers = asyncio.run(storm(server, body, 300))
        served = [answer for answer in answers if answer.status_code == 200]
        refused = [answer for answer in answers if answer.status_code != 200]
        assert len(served) >= 6
        assert len(refused) >= 100
        for answer in refused:
            check_429(answer, "queue_full")
        for answer in (*served, server.post(TEXT, body)):
            assert answer.json()["choices"][0]["text"] == "x" * 8
            assert answer.json()["usage"]["completion_tokens"] == 8
        stats = stats_of(server)
        assert (stats.num_running, stats.num_waiting) == (0, 0)
        assert stats.num_free_blocks == stats.num_blocks
        assert stats.num_refused_queue_full == len(refused)

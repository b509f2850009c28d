# SPDX-License-Identifier: Apache-2.0
"""Requests taken back: by id in every phase, by whoever sent them only, and by a client that leaves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from headrace.api.app import AppOptions
from headrace.api.server import ServerOptions
from headrace.text.tokenizer import Place
from unit.api.byte_tokenizer import ByteEncoder, byte_tokenizer
from unit.api.live_server import LiveServer, parse_events
from unit.api.slow_server import CHAT, CHUNK, LONG_PROMPT, TEXT, slow_server, stats_of, wait_until

BUSY = {"prompt": ["a"] * 4, "ignore_eos": True, "max_tokens": 900}
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with slow_server() as server:
        yield server


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def send(
    pool: ThreadPoolExecutor, server: LiveServer, path: str, body: Any, **headers: str
) -> Future[httpx.Response]:
    return pool.submit(httpx.post, server.url + path, json=body, headers=headers, timeout=20)


def cancel(server: LiveServer, request_id: str, **headers: str) -> httpx.Response:
    return server.http.post(f"/v1/requests/{request_id}/cancel", headers=headers)


def check_cancelled(response: httpx.Response, request_id: str) -> None:
    assert response.status_code == 200, response.text
    assert response.json() == {"id": request_id, "object": "request.cancelled", "cancelled": True}


def check_idle(server: LiveServer) -> None:
    wait_until(lambda: stats_of(server).num_running + stats_of(server).num_waiting == 0)
    assert server.http.get("/load").json() == {"server_load": 0}


def text_of(response: httpx.Response, is_stream: bool) -> tuple[str, str]:
    """The text and the finish reason of a completion's only choice."""
    if not is_stream:
        (choice,) = response.json()["choices"]
        return choice["text"], choice["finish_reason"]
    chunks = parse_events(response.content)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(choice["text"] for choice in choices), choices[-1]["finish_reason"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["queued", "prompt", "decoding"])
def test_cancel_in_every_phase(
    server: LiveServer, pool: ThreadPoolExecutor, phase: str, stream: bool
) -> None:
    busy = send(pool, server, TEXT, BUSY, **{"X-Request-Id": "busy"}) if phase == "queued" else None
    if busy is not None:
        wait_until(lambda: stats_of(server).num_running == 4)
    prompt = LONG_PROMPT if phase == "prompt" else "q"
    body = {"prompt": prompt, "ignore_eos": True, "stream": stream}
    num_computed, num_drawn = stats_of(server).num_computed_tokens, stats_of(server).num_output_tokens
    answer = send(pool, server, TEXT, body, **{"X-Request-Id": "mine"})
    if phase == "queued":
        wait_until(lambda: stats_of(server).num_waiting == 1)
    elif phase == "prompt":
        wait_until(lambda: stats_of(server).num_computed_tokens > num_computed + CHUNK)
    else:
        wait_until(lambda: stats_of(server).num_output_tokens > num_drawn + 5)
    check_cancelled(cancel(server, "mine"), "mine")
    response = answer.result()
    assert response.status_code == 200
    text, reason = text_of(response, stream)
    assert reason == "abort"
    assert set(text) == ({"x"} if phase == "decoding" else set())
    assert len(text) < 900
    if busy is not None:
        check_cancelled(cancel(server, "busy"), "busy")
        busy.result()
    else:
        assert stats_of(server).num_computed_tokens < num_computed + 800, "the rest was not computed"
    assert cancel(server, "mine").status_code == 404
    check_idle(server)


def test_cancelled_stream_tells_its_usage_and_ends(server: LiveServer, pool: ThreadPoolExecutor) -> None:
    body = {
        "messages": MESSAGES,
        "n": 2,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = send(pool, server, CHAT, body, **{"X-Request-Id": "s"})
    num_drawn = stats_of(server).num_output_tokens
    wait_until(lambda: stats_of(server).num_output_tokens > num_drawn + 5)
    check_cancelled(cancel(server, "s"), "s")
    chunks = parse_events(answer.result().content)  # asserts [DONE]
    for index in (0, 1):
        reasons = [
            choice["finish_reason"]
            for chunk in chunks
            for choice in chunk["choices"]
            if choice["index"] == index
        ]
        assert reasons[-1] == "abort"
        assert set(reasons[:-1]) == {None}
    num_shown = sum(len(c["delta"].get("content") or "") for chunk in chunks for c in chunk["choices"])
    assert chunks[-1]["usage"]["completion_tokens"] == num_shown > 0
    check_idle(server)


@pytest.mark.parametrize("by", ["header", "request_id", "answer id"])
def test_ids_that_cancel(server: LiveServer, pool: ThreadPoolExecutor, by: str) -> None:
    body = {"messages": MESSAGES, "ignore_eos": True, "request_id": "mine/1"}
    answer = send(pool, server, CHAT, body, **{"X-Request-Id": "from-a-gateway"})
    wait_until(lambda: stats_of(server).num_running == 1)
    wanted = {"header": "from-a-gateway", "request_id": "mine/1", "answer id": "chatcmpl-mine/1"}[by]
    check_cancelled(cancel(server, wanted), wanted)
    assert answer.result().json()["id"] == "chatcmpl-mine/1"
    assert answer.result().json()["choices"][0]["finish_reason"] == "abort"
    assert answer.result().headers["x-request-id"] == "from-a-gateway"


def test_cancel_before_the_prompt_was_scored(server: LiveServer, pool: ThreadPoolExecutor) -> None:
    for stream in (False, True):
        body = {"prompt": LONG_PROMPT, "n": 2, "echo": True, "logprobs": 1, "stream": stream}
        begin = stats_of(server).num_computed_tokens
        answer = send(pool, server, TEXT, body, **{"X-Request-Id": "scored"})
        wait_until(lambda begin=begin: stats_of(server).num_computed_tokens > begin + CHUNK)  # type: ignore[misc]
        check_cancelled(cancel(server, "scored"), "scored")
        response = answer.result()
        if not stream:
            choices = response.json()["choices"]
            assert [choice["text"] for choice in choices] == [LONG_PROMPT] * 2
            assert [choice["finish_reason"] for choice in choices] == ["abort"] * 2
            continue
        ends = [c for chunk in parse_events(response.content) for c in chunk["choices"] if c["finish_reason"]]
        assert sorted((end["index"], end["finish_reason"]) for end in ends) == [(0, "abort"), (1, "abort")]
    check_idle(server)


class _WaitingEncoder(ByteEncoder):
    """Tokenises long text only when it may."""

    def __init__(self) -> None:
        self.is_at_it = threading.Event()
        self.may_go_on = threading.Event()

    def encode(self, text: str, place: Place) -> list[int]:
        if len(text) > 4096:
            self.is_at_it.set()
            assert self.may_go_on.wait(10)
            return super().encode(text[:8], place)
        return super().encode(text, place)


def test_cancel_while_tokenising(pool: ThreadPoolExecutor) -> None:
    encoder = _WaitingEncoder()
    with slow_server(tokenizer=byte_tokenizer(encoder=encoder)) as server:
        answer = send(pool, server, TEXT, {"prompt": "p" * 5000}, **{"X-Request-Id": "early"})
        assert encoder.is_at_it.wait(10)
        check_cancelled(cancel(server, "early"), "early")
        encoder.may_go_on.set()
        body = answer.result().json()
        assert body["choices"][0]["text"] == ""
        assert body["choices"][0]["finish_reason"] == "abort"
        assert body["usage"]["prompt_tokens"] == 8
        assert body["usage"]["completion_tokens"] == 0
        assert stats_of(server).num_steps == 0, "the engine never had it"


def test_unknown_ids(server: LiveServer) -> None:
    for request_id in ("nobody", "a/b", "x" * 500):
        response = cancel(server, request_id)
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "request_not_found"
        assert response.json()["error"]["param"] == "request_id"


def test_one_request_id_at_a_time(server: LiveServer, pool: ThreadPoolExecutor) -> None:
    body = {"prompt": "a", "ignore_eos": True, "request_id": "twice"}
    answer = send(pool, server, TEXT, body)
    wait_until(lambda: stats_of(server).num_running == 1)
    refused = server.post(TEXT, body)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "duplicate_request_id"
    assert refused.json()["error"]["param"] == "request_id"
    check_cancelled(cancel(server, "twice"), "twice")
    answer.result()
    assert server.post(TEXT, {**body, "max_tokens": 1}).status_code == 200, "free again"


def test_one_header_for_several_calls(server: LiveServer, pool: ThreadPoolExecutor) -> None:
    """A gateway may give all that it makes of a request the same id."""
    body = {"prompt": "a", "ignore_eos": True}
    answers = [send(pool, server, TEXT, body, **{"X-Request-Id": "both"}) for _ in range(2)]
    wait_until(lambda: stats_of(server).num_running == 2)
    check_cancelled(cancel(server, "both"), "both")
    for answer in answers:
        assert answer.result().json()["choices"][0]["finish_reason"] == "abort"


def test_only_who_sent_it_may_cancel(pool: ThreadPoolExecutor) -> None:
    options = ServerOptions(app=AppOptions(api_keys=("one", "two")))
    with slow_server(options=options) as server:
        body = {"prompt": "a", "ignore_eos": True}
        mine = {"Authorization": "Bearer one"}
        answer = send(pool, server, TEXT, body, **mine, **{"X-Request-Id": "r"})
        wait_until(lambda: stats_of(server).num_running == 1)
        assert cancel(server, "r", Authorization="Bearer two").status_code == 404
        assert cancel(server, "r").status_code == 401
        assert stats_of(server).num_running == 1
        check_cancelled(cancel(server, "r", **mine), "r")
        assert answer.result().json()["choices"][0]["finish_reason"] == "abort"


def test_cancel_during_a_drain(pool: ThreadPoolExecutor) -> None:
    with slow_server() as server:
        answer = send(pool, server, TEXT, {"prompt": "a", "ignore_eos": True}, **{"X-Request-Id": "r"})
        wait_until(lambda: stats_of(server).num_running == 1)
        server.stop()
        wait_until(lambda: server.http.get("/health").status_code == 503)
        check_cancelled(cancel(server, "r"), "r")
        assert answer.result().json()["choices"][0]["finish_reason"] == "abort"
        server.join()
        assert server.status == 0


@pytest.mark.parametrize(
    "given", ["abc", "A" * 128, "0-b.c:d/e", "", "A" * 129, "with blank", "\x80"], ids=lambda text: text[:9]
)
def test_request_ids_are_echoed(server: LiveServer, given: str) -> None:
    """On answers, on errors of every kind, and on pages; what is no id is replaced."""
    headers = [(b"X-Request-Id", given.encode("latin-1"))]
    is_taken = 1 <= len(given) <= 128 and all("!" <= char <= "~" for char in given)
    for method, path, body in (
        ("POST", TEXT, {"prompt": "a", "max_tokens": 1}),
        ("POST", TEXT, {"prompt": "a", "max_tokens": 1, "stream": True}),
        ("POST", TEXT, {"prompt": []}),
        ("GET", "/nothing", None),
        ("GET", "/health", None),
    ):
        response = server.http.request(method, path, json=body, headers=headers)
        echoed = response.headers["x-request-id"]
        assert (echoed == given) == is_taken
        assert echoed


def leave(server: LiveServer, body: Any, after_s: float) -> None:
    """Send a request and drop the connection."""
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(server.url + TEXT, json=body, timeout=after_s)


@pytest.mark.parametrize("stream", [False, True])
def test_client_that_leaves_mid_prompt(server: LiveServer, stream: bool) -> None:
    """Q1, Q2: the rest of the prompt is not computed."""
    begin = stats_of(server).num_computed_tokens
    body = {"prompt": "q" * 900, "stream": stream, "ignore_eos": True}
    if stream:
        with httpx.stream("POST", server.url + TEXT, json=body, timeout=10) as response:
            assert response.status_code == 200
            wait_until(lambda: stats_of(server).num_computed_tokens > begin + CHUNK)
    else:
        leave(server, body, 0.3)
    check_idle(server)
    assert CHUNK < stats_of(server).num_computed_tokens - begin < 800
    assert stats_of(server).num_free_blocks == stats_of(server).num_blocks


def test_client_that_leaves_the_queue(server: LiveServer, pool: ThreadPoolExecutor) -> None:
    """Q1: the request never starts."""
    busy = send(pool, server, TEXT, BUSY, **{"X-Request-Id": "busy"})
    wait_until(lambda: stats_of(server).num_running == 4)
    begin = stats_of(server).num_queried_tokens
    leave(server, {"prompt": "r" * 300, "ignore_eos": True}, 0.15)
    wait_until(lambda: stats_of(server).num_waiting == 0)
    assert stats_of(server).num_running == 4
    assert stats_of(server).num_queried_tokens == begin
    check_cancelled(cancel(server, "busy"), "busy")
    busy.result()
    check_idle(server)

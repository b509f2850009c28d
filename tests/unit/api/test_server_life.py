# SPDX-License-Identifier: Apache-2.0
"""From the open port to the clean end: loading, readiness, drain, keys, clients that leave."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from headrace.api.app import AppOptions
from headrace.api.served_model import ServedModel
from headrace.api.server import ServerOptions, listen
from headrace.core.errors import ConfigError
from headrace.engine.stats import EngineStats
from unit.api.byte_tokenizer import END, VOCAB_SIZE, byte_tokenizer, spell
from unit.api.live_server import LiveServer, parse_events, running, serve_backend
from unit.api.reciting_backend import RecitingBackend

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


def slow_backend(num_tokens: int, step_s: float) -> RecitingBackend:
    return RecitingBackend(spell("x" * num_tokens), end=END, vocab_size=VOCAB_SIZE, step_s=step_s)


def wait_until(holds: Callable[[], bool], within_s: float = 5.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_503_until_the_model_is_there() -> None:
    """J1, J2"""
    may_load = threading.Event()

    def load() -> ServedModel:
        assert may_load.wait(10)
        return serve_backend(slow_backend(3, 0.0), byte_tokenizer())

    server = LiveServer(load)
    try:
        for response in (
            server.http.get("/health"),
            server.http.get("/v1/models"),
            server.post(CHAT, {"messages": MESSAGES}),
            server.post(TEXT, {"prompt": "a", "stream": True}),
        ):
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) > 0
            assert response.json()["error"]["code"] == "model_loading"
        assert server.http.get("/ping").status_code == 200
        assert server.http.head("/health").status_code == 503
        may_load.set()
        wait_until(lambda: server.http.get("/health").status_code == 200)
        assert server.post(CHAT, {"messages": MESSAGES}).status_code == 200
    finally:
        assert server.finish() == 0


def test_load_that_fails_ends_the_server() -> None:
    def load() -> ServedModel:
        raise ConfigError("no such model")

    server = LiveServer(load)
    server.join()
    assert isinstance(server.error, ConfigError)


def test_health_tells_of_a_dead_engine() -> None:
    """J2"""
    model = serve_backend(slow_backend(3, 0.0), byte_tokenizer())
    server = LiveServer(lambda: model).wait_ready()
    try:
        assert server.http.get("/health").status_code == 200
        model.engine.close()
        assert server.http.get("/health").status_code == 503
        assert server.http.get("/health").json()["error"]["code"] == "engine_dead"
        assert server.post(CHAT, {"messages": MESSAGES}).status_code == 503
    finally:
        server.finish()


def test_drain_finishes_what_runs() -> None:
    """J3"""
    with ThreadPoolExecutor() as pool, running(slow_backend(40, 0.02), byte_tokenizer()) as server:
        body = {"messages": MESSAGES, "stream": True}
        streams = [pool.submit(server.post, CHAT, body) for _ in range(3)]
        model_engine = server.server._model
        assert model_engine is not None
        wait_until(lambda: model_engine.engine.stats().num_running == 3)
        server.stop()
        wait_until(lambda: server.http.get("/health").status_code == 503)
        refused = server.post(CHAT, {"messages": MESSAGES})
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "draining"
        for stream in streams:
            chunks = parse_events(stream.result().content)
            assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "x" * 40
        server.join()
        assert server.status == 0


def test_drain_has_an_end() -> None:
    """A stream that is cut off hears of it."""
    options = ServerOptions(drain_timeout_s=0.2)
    with ThreadPoolExecutor() as pool, running(slow_backend(900, 0.02), byte_tokenizer(), options) as server:
        stream = pool.submit(server.post, CHAT, {"messages": MESSAGES, "stream": True})
        wait_until(lambda: server.server._app.num_requests == 1)
        time.sleep(0.1)
        server.stop()
        body = stream.result().content
        assert b'data: {"error":' in body
        assert b"[DONE]" not in body
        server.join()
        assert server.status == 1


def test_second_signal_ends_at_once() -> None:
    with ThreadPoolExecutor() as pool, running(slow_backend(900, 0.02), byte_tokenizer()) as server:
        stream = pool.submit(server.post, CHAT, {"messages": MESSAGES})
        wait_until(lambda: server.server._app.num_requests == 1)
        server.stop()
        time.sleep(0.1)
        begin_s = time.monotonic()
        server.stop()
        server.join()
        assert time.monotonic() - begin_s < 3
        assert server.status == 1
        pool.submit(stream.exception).result()


def leave(url: str, body: object, after_s: float) -> None:
    """Send a request and drop the connection."""
    with (
        contextlib.suppress(httpx.ReadTimeout),
        httpx.Client() as client,
        client.stream("POST", url, json=body, timeout=after_s),
    ):
        time.sleep(after_s)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_client_that_leaves(path: str, stream: bool) -> None:
    """Q1"""
    backend = slow_backend(900, 0.01)
    with running(backend, byte_tokenizer()) as server:
        model = server.server._model
        assert model is not None

        def stats() -> EngineStats:
            return model.engine.stats()

        num_free = stats().num_free_blocks
        body: dict[str, Any] = {"stream": stream, "n": 2, "ignore_eos": True}
        body |= {"messages": MESSAGES} if path == CHAT else {"prompt": ["a", "b"]}
        num_choices = 2 if path == CHAT else 4
        with ThreadPoolExecutor() as pool:
            leaving = pool.submit(leave, server.url + path, body, 0.5)
            wait_until(lambda: stats().num_running == num_choices)
            leaving.result()
        wait_until(lambda: stats().num_running == 0, within_s=1.0)
        assert stats().num_free_blocks == num_free
        assert server.server._app.num_requests == 0


def test_client_that_leaves_while_it_waits() -> None:
    """Q1: queued behind others, and before its first token."""
    with running(slow_backend(900, 0.01), byte_tokenizer()) as server:
        model = server.server._model
        assert model is not None
        many = {"prompt": ["a"] * 20, "ignore_eos": True}
        for _ in range(2):
            leave(server.url + TEXT, many, 0.3)
        wait_until(lambda: model.engine.stats().num_running + model.engine.stats().num_waiting == 0, 2.0)


def test_keys() -> None:
    """J5, J6: every route but the probes."""
    options = ServerOptions(app=AppOptions(api_keys=("right", "also-right")))
    with running(slow_backend(2, 0.0), byte_tokenizer(), options) as server:
        server.http.headers["Authorization"] = "bearer right"
        paths = server.http.get("/openapi.json").json()["paths"]
        assert {CHAT, TEXT, "/v1/models", "/health"} <= paths.keys()
        for header in ("", "Bearer wrong", "Bearer", "Basic right", "Bearer rightx"):
            for path, methods in [*paths.items(), ("/openapi.json", {"get": 0}), ("/nothing", {"get": 0})]:
                for method in methods:
                    response = server.http.request(method, path, headers={"Authorization": header})
                    if path in ("/health", "/ping"):
                        assert response.status_code == 200
                    else:
                        assert response.status_code == 401
                        assert response.json()["error"]["code"] == "invalid_api_key"
        for header in ("Bearer right", "bearer also-right"):
            response = server.http.get("/v1/models", headers={"Authorization": header})
            assert response.status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ping"])
def test_probes_may_ask_for_the_head_alone(path: str) -> None:
    options = ServerOptions(app=AppOptions(api_keys=("k",)))
    with running(slow_backend(2, 0.0), byte_tokenizer(), options) as server:
        head, get = server.http.head(path), server.http.get(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == get.headers["content-length"]


def test_browsers_may_ask_first() -> None:
    """J7"""
    app = AppOptions(api_keys=("k",), allowed_origins=("http://page.example",))
    with running(slow_backend(2, 0.0), byte_tokenizer(), ServerOptions(app=app)) as server:
        headers = {
            "Origin": "http://page.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
        }
        response = server.http.options(CHAT, headers=headers)
        assert response.status_code == 200
        assert "authorization" in response.headers["access-control-allow-headers"].lower()
        post = server.http.post(CHAT, json={}, headers={"Origin": "http://page.example"})
        assert post.status_code == 401
        assert post.headers["access-control-allow-origin"] == "http://page.example"


def test_port_in_use() -> None:
    taken = listen("127.0.0.1", 0)
    with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1"):
        listen("127.0.0.1", taken.getsockname()[1])
    taken.close()
    with pytest.raises(ConfigError, match="cannot listen"):
        listen("no.such.host.invalid", 0)


def test_health_answers_while_long_text_is_tokenised() -> None:
    """G8"""
    backend = RecitingBackend([], end=END, vocab_size=VOCAB_SIZE, max_model_len=10**7)
    backend.info = type(backend.info)(VOCAB_SIZE, 10**7, 16, 10**6)
    with ThreadPoolExecutor() as pool, running(backend, byte_tokenizer()) as server:
        post = pool.submit(server.post, TEXT, {"prompt": "x" * 6_000_000, "max_tokens": 10**7})
        while not post.done():
            begin_s = time.monotonic()
            assert server.http.get("/health").status_code == 200
            assert time.monotonic() - begin_s < 1
            time.sleep(0.02)
        assert post.result().json()["error"]["code"] == "context_length_exceeded"

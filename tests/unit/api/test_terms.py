# SPDX-License-Identifier: Apache-2.0
"""What reaches the engine beside prompt and sampling: in whose name, how soon, sharing with whom."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from headrace.api.app import AppOptions
from headrace.api.http.origin import digest_of_key
from headrace.api.server import ServerOptions
from headrace.core.events import Sink
from headrace.core.request import GenerateRequest
from headrace.runner.backends.fake import FakeBackend
from unit.api.byte_tokenizer import VOCAB_SIZE, byte_tokenizer
from unit.api.live_server import LiveServer, running

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


class Recorded:
    """Notes what is submitted, and submits it."""

    def __init__(self, server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
        model = server.server._model
        assert model is not None
        self.requests: list[GenerateRequest] = []
        self._submit_all = model.engine.submit_all
        monkeypatch.setattr(model.engine, "submit_all", self._note)

    def _note(self, requests: Sequence[GenerateRequest], sink: Sink) -> None:
        self.requests += requests
        self._submit_all(requests, sink)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with running(FakeBackend(vocab_size=VOCAB_SIZE), byte_tokenizer()) as server:
        yield server


@pytest.fixture
def recorded(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return Recorded(server, monkeypatch)


def post(server: LiveServer, path: str, **fields: Any) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    response = server.post(path, {**body, "max_tokens": 2, **fields})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_fields_reach_every_sibling(server: LiveServer, recorded: Recorded, path: str) -> None:
    fields = {"priority": -7, "cache_salt": "s", "deterministic": True, "slo_ttft_ms": 12_345.5}
    begin_s = time.monotonic()
    post(server, path, n=3, **fields)
    assert len(recorded.requests) == 3
    for request in recorded.requests:
        assert (request.priority, request.cache_salt, request.deterministic) == (-7, "s", True)
        assert request.ttft_slo_s == 12.3455
        assert request.arrival_s == recorded.requests[0].arrival_s
        assert begin_s <= (request.arrival_s or 0) <= time.monotonic()
    assert len({request.request_id for request in recorded.requests}) == 3


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_what_is_left_out(server: LiveServer, recorded: Recorded, path: str) -> None:
    for fields in ({}, dict.fromkeys(("priority", "cache_salt", "deterministic", "slo_ttft_ms"))):
        post(server, path, **fields)
        request = recorded.requests[-1]
        assert (request.priority, request.cache_salt, request.deterministic) == (0, "", False)
        assert (request.ttft_slo_s, request.tenant) == (None, "")


def test_the_arrival_is_before_the_body(server: LiveServer, recorded: Recorded) -> None:
    """A body that takes its time counts as waiting: the client waits."""

    def slow_body() -> Iterator[bytes]:
        yield b'{"prompt": "hi", "max_tokens": 1, '
        time.sleep(0.2)
        yield b'"return_timings": true}'

    response = server.http.post(TEXT, content=slow_body(), headers={"Content-Type": "application/json"})
    timings = response.json()["timings"]
    assert timings["tokenize_ms"] > 190
    assert timings["ttft_ms"] >= timings["tokenize_ms"]


def test_tenants_without_keys(server: LiveServer, recorded: Recorded) -> None:
    """A key that is not needed says nothing: clients send made-up ones."""
    for name in ("a", "b"):
        headers = {"X-Tenant-ID": name, "Authorization": "Bearer none"}
        server.http.post(TEXT, json={"prompt": "hi", "max_tokens": 1, "user": "u"}, headers=headers)
    assert [request.tenant for request in recorded.requests] == ["a", "b"]


def test_tenants_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ServerOptions(app=AppOptions(api_keys=("one", "two")))
    with running(FakeBackend(vocab_size=VOCAB_SIZE), byte_tokenizer(), options) as server:
        recorded = Recorded(server, monkeypatch)
        for key in ("one", "two", "one"):
            headers = {"Authorization": f"bearer {key}", "X-Tenant-ID": "somebody-else"}
            response = server.http.post(TEXT, json={"prompt": "hi", "max_tokens": 1}, headers=headers)
            assert response.status_code == 200
        tenants = [request.tenant for request in recorded.requests]
        assert tenants == [digest_of_key("one"), digest_of_key("two"), digest_of_key("one")]
        assert len(set(tenants)) == 2
        assert not any(key in tenant for tenant in tenants for key in ("one", "two"))

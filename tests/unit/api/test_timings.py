# SPDX-License-Identifier: Apache-2.0
"""Where the wait went, as answers tell it, and what of their prompts was found in the cache."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.api.app import AppOptions
from headrace.api.server import ServerOptions
from headrace.core.events import WAIT_CAUSES
from unit.api.byte_tokenizer import END, VOCAB_SIZE, byte_tokenizer, spell
from unit.api.live_server import LiveServer, running
from unit.api.reciting_backend import RecitingBackend

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
STEP_S = 0.01
CAUSES = {*(cause.removesuffix("_s") + "_ms" for cause in WAIT_CAUSES), "delivery_ms"}
TIMINGS = {"ttft_ms", "e2e_ms", "tpot_ms", "num_preemptions", *CAUSES}
METRICS = {
    "time_to_first_token_ms",
    "generation_time_ms",
    "queue_time_ms",
    "mean_itl_ms",
    "tokens_per_second",
    "speculative_decoding",
}


@pytest.fixture(scope="module")
def backend() -> RecitingBackend:
    return RecitingBackend(spell("Hello"), end=END, vocab_size=VOCAB_SIZE, step_s=STEP_S)


@pytest.fixture(scope="module")
def server(backend: RecitingBackend) -> Iterator[LiveServer]:
    with running(backend, byte_tokenizer()) as server:
        yield server


def body_of(path: str, text: str, **fields: Any) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    return {**asked, **fields}


def check_timings(timings: dict[str, Any], within_ms: float) -> None:
    assert timings.keys() == TIMINGS
    assert sum(timings[cause] for cause in CAUSES) == pytest.approx(timings["ttft_ms"])
    assert all(timings[cause] >= 0 for cause in CAUSES)
    assert timings["own_prompt_ms"] >= STEP_S * 1000 * 0.9
    # Five more steps: four letters and the end.
    assert timings["ttft_ms"] + 5 * STEP_S * 1000 * 0.9 <= timings["e2e_ms"] <= within_ms
    assert timings["tpot_ms"] == pytest.approx((timings["e2e_ms"] - timings["ttft_ms"]) / 5)
    assert timings["num_preemptions"] == 0


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_timings(server: LiveServer, path: str, stream: bool, usage: bool) -> None:
    body = body_of(path, "t", return_timings=True)
    begin_s = time.monotonic()
    if not stream:
        whole = server.post(path, body).json()
        assert whole["usage"]["completion_tokens"] == 6
    else:
        options = {"stream_options": {"include_usage": True}} if usage else {}
        *chunks, whole = server.stream(path, {**body, **options})
        assert not any("timings" in chunk or "metrics" in chunk for chunk in chunks)
        assert whole["choices"] == []
        assert ("usage" in whole) == usage
        assert whole["object"] == chunks[0]["object"]
    check_timings(whole["timings"], within_ms=(time.monotonic() - begin_s) * 1000)
    timings, metrics = whole["timings"], whole["metrics"]
    assert metrics.keys() == METRICS
    assert metrics["time_to_first_token_ms"] == timings["ttft_ms"]
    assert metrics["mean_itl_ms"] == timings["tpot_ms"]
    assert metrics["generation_time_ms"] == pytest.approx(timings["e2e_ms"] - timings["ttft_ms"])
    assert metrics["tokens_per_second"] == pytest.approx(5000 / metrics["generation_time_ms"])
    assert 0 <= metrics["queue_time_ms"] <= timings["ttft_ms"]
    assert metrics["speculative_decoding"] is None


def test_nothing_is_told_unasked(server: LiveServer) -> None:
    for fields in ({}, {"return_timings": False}, {"return_timings": None}):
        assert not {"timings", "metrics"} & server.post(TEXT, body_of(TEXT, "t", **fields)).json().keys()
        assert all(chunk["choices"] for chunk in server.stream(TEXT, body_of(TEXT, "t", **fields)))


def test_text_that_is_held_back_is_delivery(server: LiveServer, backend: RecitingBackend) -> None:
    """The engine's first token is there; the text waits for what may become a stop string."""
    timings = server.post(TEXT, body_of(TEXT, "t", stop="Hellx", return_timings=True)).json()["timings"]
    assert timings["delivery_ms"] >= 4 * STEP_S * 1000 * 0.9
    assert sum(timings[cause] for cause in CAUSES) == pytest.approx(timings["ttft_ms"])


def test_an_answer_that_ends_at_a_stop_string(server: LiveServer) -> None:
    timings = server.post(TEXT, body_of(TEXT, "t", stop="l", return_timings=True)).json()["timings"]
    assert timings["num_preemptions"] is None, "its end came before the engine's"
    assert timings["ttft_ms"] > 0


def test_an_answer_without_tokens(server: LiveServer) -> None:
    body = {"prompt": "abc", "max_tokens": 0, "echo": True, "return_timings": True}
    timings = server.post(TEXT, body).json()["timings"]
    assert timings.keys() == TIMINGS
    assert timings["ttft_ms"] is timings["queue_ms"] is timings["tpot_ms"] is None
    assert timings["e2e_ms"] > 0


def test_metrics_for_everybody() -> None:
    """--enable-per-request-metrics: in whole answers and where a stream's usage is."""
    backend = RecitingBackend(spell("Hello"), end=END, vocab_size=VOCAB_SIZE)
    options = ServerOptions(app=AppOptions(reports_metrics=True))
    with running(backend, byte_tokenizer(), options) as server:
        whole = server.post(CHAT, body_of(CHAT, "t")).json()
        assert whole["metrics"].keys() == METRICS
        assert "timings" not in whole
        assert all(chunk["choices"] for chunk in server.stream(CHAT, body_of(CHAT, "t")))
        last = server.stream(CHAT, body_of(CHAT, "t", stream_options={"include_usage": True}))[-1]
        assert last["metrics"].keys() == METRICS
        assert last["usage"]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_cached_tokens(server: LiveServer, path: str) -> None:
    """What was computed is found again, by whole answers and streams alike; the last token never is."""
    body = body_of(path, f"{path} " + "c" * 100, cache_salt=f"mine {path}")
    cold = server.post(path, body).json()["usage"]
    assert cold["prompt_tokens_details"] == {"cached_tokens": 0}
    warm = server.post(path, body).json()["usage"]
    num_cached = warm["prompt_tokens_details"]["cached_tokens"]
    assert cold["prompt_tokens"] - 16 <= num_cached < cold["prompt_tokens"]
    assert {**warm, "prompt_tokens_details": None} == {**cold, "prompt_tokens_details": None}
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = server.stream(path, {**body, "stream_options": options})
    assert all(chunk["usage"]["prompt_tokens_details"]["cached_tokens"] == num_cached for chunk in chunks)
    assert chunks[-1]["usage"] == warm
    salted = server.post(path, {**body, "cache_salt": f"other {path}"}).json()["usage"]
    assert salted == cold, "nothing is shared under another salt"


def test_cached_tokens_of_several_answers_count_once(server: LiveServer) -> None:
    texts = ["m" * 64, "k" * 64]
    cold = server.post(TEXT, {"prompt": texts, "n": 3}).json()["usage"]
    assert cold["prompt_tokens"] == 128
    assert cold["prompt_tokens_details"] == {"cached_tokens": 0}, "the siblings' sharing is no cache"
    warm = server.post(TEXT, {"prompt": texts, "n": 3}).json()["usage"]
    assert 2 * 48 <= warm["prompt_tokens_details"]["cached_tokens"] < 128


def test_the_cache_can_be_emptied(server: LiveServer) -> None:
    body = body_of(TEXT, "e" * 100)
    for _ in range(2):
        warm = server.post(TEXT, body).json()["usage"]
    assert warm["prompt_tokens_details"]["cached_tokens"] > 0
    response = server.http.post("/reset_prefix_cache")
    assert (response.status_code, response.json()) == (200, {"success": True})
    assert server.post(TEXT, body).json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}

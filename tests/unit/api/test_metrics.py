# SPDX-License-Identifier: Apache-2.0
"""GET /metrics of a live server: it parses, moves as the requests did, and says what their answers said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.api.app import AppOptions
from headrace.api.server import ServerOptions
from headrace.core.config import EngineConfig
from headrace.observe.counts import TTFT_CAUSES
from unit.api.byte_tokenizer import END, VOCAB_SIZE, byte_tokenizer, spell
from unit.api.live_server import LiveServer, running
from unit.api.reciting_backend import RecitingBackend
from unit.api.slow_server import TEXT, slow_server, stats_of, wait_until

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
BASE = {"model_name": "tiny"}
VLLM = {"model_name": "tiny", "engine": "0"}


@pytest.fixture
def server() -> Iterator[LiveServer]:
    backend = RecitingBackend(spell("Hello"), end=END, vocab_size=VOCAB_SIZE, step_s=0.001)
    options = ServerOptions(app=AppOptions(has_vllm_metrics=True))
    with running(backend, byte_tokenizer(), options) as server:
        yield server


def scrape(server: LiveServer) -> Samples:
    response = server.http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(response.text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    base = VLLM if name.startswith("vllm:") else BASE
    return samples[name, frozenset({**base, **labels}.items())]


def post(server: LiveServer, **body: Any) -> dict[str, Any]:
    response = server.post(TEXT, body)
    assert response.status_code == 200, response.text
    whole: dict[str, Any] = response.json()
    return whole


def test_ten_requests(server: LiveServer) -> None:
    """J4: counts and sums before and after, against what the answers themselves told."""
    before = scrape(server)
    answers = [post(server, prompt="p" * 40, return_timings=True) for _ in range(10)]
    after = scrape(server)

    def grown(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    usages = [answer["usage"] for answer in answers]
    num_cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert num_cached > 0
    expected = {
        "headrace:prompt_tokens_total": 400,
        "headrace:cached_tokens_total": num_cached,
        "headrace:generated_tokens_total": 60,
        "headrace:prefix_queried_tokens_total": 400,
        "headrace:prefix_hit_tokens_total": num_cached,
        "headrace:answer_prompt_tokens_sum": 400,
        "headrace:answer_output_tokens_sum": 60,
        "headrace:itl_seconds_count": 50,
        "headrace:ttft_seconds_count": 10,
        "headrace:tpot_seconds_count": 10,
        "headrace:e2e_seconds_count": 10,
        "headrace:preemptions_total": 0,
        "vllm:prompt_tokens_total": 400,
        "vllm:prompt_tokens_cached_total": num_cached,
        "vllm:generation_tokens_total": 60,
        "vllm:prefix_cache_queries_total": 400,
        "vllm:prefix_cache_hits_total": num_cached,
        "vllm:time_to_first_token_seconds_count": 10,
        "vllm:inter_token_latency_seconds_count": 50,
        "vllm:request_prompt_tokens_sum": 400,
        "vllm:request_generation_tokens_sum": 60,
        "vllm:request_prefill_kv_computed_tokens_sum": 400 - num_cached,
        "vllm:request_params_n_sum": 10,
        "vllm:request_num_preemptions_count": 10,
        "vllm:e2e_request_latency_seconds_count": 10,
        "vllm:request_queue_time_seconds_count": 10,
    }
    assert {name: grown(name) for name in expected} == expected
    assert grown("headrace:answers_total", finish_reason="stop") == 10
    assert grown("vllm:request_success_total", finished_reason="stop") == 10
    assert grown("vllm:prompt_tokens_by_source_total", source="local_cache_hit") == num_cached
    assert grown("vllm:prompt_tokens_by_source_total", source="local_compute") == 400 - num_cached
    steps = grown("headrace:steps_total")
    assert steps == grown("headrace:step_tokens_count") == grown("vllm:iteration_tokens_total_count")
    assert grown("headrace:step_tokens_sum") == grown("headrace:computed_tokens_total")

    timings = [answer["timings"] for answer in answers]
    for name, key in (
        ("headrace:ttft_seconds_sum", "ttft_ms"),
        ("headrace:e2e_seconds_sum", "e2e_ms"),
        ("headrace:tpot_seconds_sum", "tpot_ms"),
        ("vllm:time_to_first_token_seconds_sum", "ttft_ms"),
    ):
        assert grown(name) == pytest.approx(sum(timing[key] for timing in timings) / 1000)
    for cause in TTFT_CAUSES:
        told = sum(timing[f"{cause}_ms"] for timing in timings) / 1000
        assert grown("headrace:ttft_cause_seconds_sum", cause=cause) == pytest.approx(told)
        assert grown("headrace:ttft_cause_seconds_count", cause=cause) == 10
    queued = sum(answer["metrics"]["queue_time_ms"] for answer in answers) / 1000
    assert grown("vllm:request_queue_time_seconds_sum") == pytest.approx(queued)


def test_every_way_an_answer_may_end(server: LiveServer) -> None:
    post(server, prompt="a", max_tokens=2, n=2)
    post(server, prompt="a", stop="l")
    post(server, prompt="abc", max_tokens=0, echo=True, n=2)
    post(server, prompt="a")
    samples = scrape(server)
    counted = {
        reason: value(samples, "headrace:answers_total", finish_reason=reason)
        for reason in ("stop", "length", "abort", "error")
    }
    assert counted == {"stop": 2, "length": 4, "abort": 0, "error": 0}
    assert value(samples, "headrace:prompt_tokens_total") == 1 + 1 + 3 + 1, "n answers, one prompt"
    assert value(samples, "headrace:answer_prompt_tokens_count") == 6
    assert value(samples, "vllm:request_params_n_count") == 4
    assert value(samples, "vllm:request_params_n_sum") == 6
    assert value(samples, "vllm:request_params_max_tokens_count") == 4


def test_answers_that_break() -> None:
    backend = RecitingBackend(spell("Hello"), end=END, vocab_size=VOCAB_SIZE, fail_at=2)
    with running(backend, byte_tokenizer()) as server:
        assert server.post(TEXT, {"prompt": "a", "n": 2}).status_code == 500
        samples = scrape(server)
        assert value(samples, "headrace:answers_total", finish_reason="error") == 2
        assert value(samples, "headrace:ttft_seconds_count") == 2
        assert not any(name.startswith("vllm:") for name, _ in samples), "only where asked for"


def test_a_busy_server() -> None:
    """Gauges of those that run and wait; the page comes while the engine is at work."""
    with slow_server(num_seqs=2, max_num_queued_reqs=3) as server:
        for client in (httpx.Client(), httpx.Client()):
            with (
                client,
                client.stream(
                    "POST",
                    server.url + TEXT,
                    json={"prompt": ["a" * 20] * 3, "ignore_eos": True, "stream": True},
                ),
            ):
                wait_until(lambda: stats_of(server).num_running == 2)
                assert server.post(TEXT, {"prompt": "a", "n": 3}).status_code == 429
                assert server.post(TEXT, {"prompt": "a" * 500, "slo_ttft_ms": 0.1}).status_code == 429
                samples = scrape(server)
                assert value(samples, "headrace:running_answers") == 2
                assert value(samples, "headrace:waiting_answers", reason="capacity") == 1
                assert value(samples, "headrace:waiting_answers", reason="kv") == 0
                assert value(samples, "headrace:queued_tokens") == 20
                assert 0 < value(samples, "headrace:kv_usage_ratio") < 1
                assert 0 <= value(samples, "headrace:kv_paging_waste_ratio") < 1
            wait_until(lambda: stats_of(server).num_running == 0)
        samples = scrape(server)
        assert value(samples, "headrace:answers_total", finish_reason="abort") == 6
        assert value(samples, "headrace:refused_requests_total", reason="queue_full") == 2
        assert value(samples, "headrace:refused_requests_total", reason="slo_unreachable") == 2
        assert value(samples, "headrace:kv_usage_ratio") == 0


def test_waiting_for_blocks() -> None:
    backend = RecitingBackend(spell("x" * 90), end=END, vocab_size=VOCAB_SIZE, num_blocks=8, step_s=0.01)
    config = EngineConfig(max_num_seqs=4, enable_prefix_caching=False)
    with running(backend, byte_tokenizer(), config=config) as server, httpx.Client() as client:
        body = {"prompt": ["a" * 60, "b" * 60], "ignore_eos": True, "max_tokens": 60, "stream": True}
        with client.stream("POST", server.url + TEXT, json=body, timeout=20) as response:
            wait_until(lambda: value(scrape(server), "headrace:waiting_answers", reason="kv") == 1)
            list(response.iter_bytes())
        samples = scrape(server)
        assert value(samples, "headrace:preemptions_total") > 0
        assert value(samples, "headrace:answers_total", finish_reason="length") == 2


def test_the_page_needs_a_key() -> None:
    options = ServerOptions(app=AppOptions(api_keys=("k",)))
    backend = RecitingBackend([], end=END, vocab_size=VOCAB_SIZE)
    with running(backend, byte_tokenizer(), options) as server:
        assert server.http.get("/metrics").status_code == 401
        assert server.http.get("/metrics", headers={"Authorization": "Bearer k"}).status_code == 200

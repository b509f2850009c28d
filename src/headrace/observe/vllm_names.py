# SPDX-License-Identifier: Apache-2.0
"""The same numbers under the names, labels and buckets that vLLM has, for dashboards and routers made for it.
What Headrace has no value for is left out; zero stands where zero is true."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from headrace.observe.counts import AnswerCounts, StepCounts
from headrace.observe.engine_numbers import EngineNumbers, ServingFacts
from headrace.observe.families import Families

PREFIX = "vllm:"
ENGINE = "0"  # the index of the only one


def vllm_families(
    facts: ServingFacts, engine: EngineNumbers, steps: StepCounts, answers: AnswerCounts
) -> Iterator[Metric]:
    make = Families(PREFIX, {"model_name": facts.model_name, "engine": ENGINE})
    yield from _gauges(make, facts, engine)
    yield from _counters(make, engine, answers)
    yield from _time_histograms(make, steps, answers)
    yield from _size_histograms(make, facts, steps, answers)


def _gauges(make: Families, facts: ServingFacts, engine: EngineNumbers) -> Iterator[Metric]:
    yield make.gauge("num_requests_running", "Requests being computed.", engine.num_running)
    yield make.gauge("num_requests_waiting", "Requests that wait.", engine.num_waiting)
    yield make.gauges(
        "num_requests_waiting_by_reason",
        "Requests that wait, by why.",
        "reason",
        {"capacity": engine.num_waiting, "deferred": 0},
    )
    yield make.gauge("kv_cache_usage_perc", "KV blocks in use: 1 is all.", engine.kv_usage)
    yield make.gauges(
        "engine_sleep_state",
        "1 for the state that the engine is in.",
        "sleep_state",
        {"awake": 1, "weights_offloaded": 0, "discard_all": 0},
    )
    info = {
        "engine": ENGINE,
        "block_size": str(facts.block_size),
        "num_gpu_blocks": str(engine.num_blocks),
        "enable_prefix_caching": str(facts.enable_prefix_caching),
    }
    family = GaugeMetricFamily(f"{PREFIX}cache_config_info", "How the KV cache is set up.", labels=list(info))
    family.add_metric(list(info.values()), 1)
    yield family


def _counters(make: Families, engine: EngineNumbers, answers: AnswerCounts) -> Iterator[Metric]:
    num_prompt, num_cached = answers.num_prompt_tokens, answers.num_cached_tokens
    sources = {
        "local_compute": num_prompt - num_cached,
        "local_cache_hit": num_cached,
        "external_kv_transfer": 0,
    }
    yield make.counter("prompt_tokens", "Prompt tokens.", num_prompt)
    yield make.counters("prompt_tokens_by_source", "Prompt tokens, by origin.", "source", sources)
    yield make.counter("prompt_tokens_cached", "Prompt tokens that were not computed.", num_cached)
    yield make.counter("generation_tokens", "Tokens drawn.", engine.num_output_tokens)
    yield make.counter("prefix_cache_queries", "Prompt tokens looked up.", engine.num_queried_tokens)
    yield make.counter("prefix_cache_hits", "Prompt tokens found.", engine.num_hit_tokens)
    for name in ("external_prefix_cache", "mm_cache"):
        yield make.counter(f"{name}_queries", "There is no such cache.", 0)
        yield make.counter(f"{name}_hits", "There is no such cache.", 0)
    yield make.counter("num_preemptions", "Preemptions.", engine.num_preemptions)
    yield make.counters("request_success", "Answers that ended.", "finished_reason", answers.num_ended)
    yield make.counters(
        "admission_rejections",
        "Requests refused with 429.",
        "reason",
        {"queue_full": engine.num_refused_queue_full, "slo_unreachable": engine.num_refused_slo},
    )
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        yield make.counter(f"spec_decode_num_{name}", "Nothing is drafted.", 0)


def _time_histograms(make: Families, steps: StepCounts, answers: AnswerCounts) -> Iterator[Metric]:
    yield make.histogram("time_to_first_token_seconds", "Arrival to first text.", answers.ttft)
    yield make.histogram("inter_token_latency_seconds", "Between two tokens of an answer.", steps.itl)
    yield make.histogram(
        "request_time_per_output_token_seconds", "Mean over an answer's tokens after the first.", answers.tpot
    )
    yield make.histogram("e2e_request_latency_seconds", "Arrival to end.", answers.e2e)
    yield make.histogram("request_queue_time_seconds", "Submission to first step.", answers.queue)
    yield make.histogram("request_prefill_time_seconds", "First step to first token.", answers.prefill)
    yield make.histogram("request_decode_time_seconds", "First text to end.", answers.decode)
    yield make.histogram("request_inference_time_seconds", "First step to end.", answers.inference)


def _size_histograms(
    make: Families, facts: ServingFacts, steps: StepCounts, answers: AnswerCounts
) -> Iterator[Metric]:
    largest = facts.max_model_len
    for name, text, histogram in (
        ("request_prompt_tokens", "Prompt tokens.", answers.prompt_tokens),
        ("request_generation_tokens", "Output tokens.", answers.output_tokens),
        # Every answer counts by itself here, so that the most of a request's is its own.
        ("request_max_num_generation_tokens", "Output tokens of the longest.", answers.output_tokens),
        ("request_params_max_tokens", "The max_tokens asked for.", answers.max_tokens),
        ("request_prefill_kv_computed_tokens", "Prompt tokens computed.", answers.computed_prompt_tokens),
    ):
        yield make.histogram(name, text, histogram, largest)
    yield make.histogram("request_params_n", "The n asked for.", answers.n)
    yield make.histogram("request_num_preemptions", "Preemptions of an answer.", answers.preemptions)
    yield make.histogram("iteration_tokens_total", "Tokens computed in a step.", steps.tokens)

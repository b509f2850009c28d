# SPDX-License-Identifier: Apache-2.0
"""The metrics page without a server: its names, types, labels and buckets, which dashboards depend on."""

from __future__ import annotations

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from headrace.core.events import StepRecord, WaitSplit
from headrace.engine.stats import EngineStats
from headrace.observe.answers import AnswerEnd, FirstText
from headrace.observe.counts import AnswerCounts, StepCounts
from headrace.observe.engine_numbers import ServingFacts
from headrace.observe.page import MetricsPage

# Renaming one of these breaks somebody's dashboard or alarm.
OWN = {
    "running_answers": "gauge",
    "waiting_answers": "gauge",
    "queued_tokens": "gauge",
    "kv_usage_ratio": "gauge",
    "kv_paging_waste_ratio": "gauge",
    "kv_blocks": "gauge",
    "cached_blocks": "gauge",
    "generated_tokens": "counter",
    "computed_tokens": "counter",
    "prefix_queried_tokens": "counter",
    "prefix_hit_tokens": "counter",
    "evicted_blocks": "counter",
    "preemptions": "counter",
    "refused_requests": "counter",
    "steps": "counter",
    "step_seconds": "counter",
    "native_seconds": "counter",
    "prompt_tokens": "counter",
    "cached_tokens": "counter",
    "answers": "counter",
    "ttft_seconds": "histogram",
    "ttft_cause_seconds": "histogram",
    "itl_seconds": "histogram",
    "tpot_seconds": "histogram",
    "e2e_seconds": "histogram",
    "answer_prompt_tokens": "histogram",
    "answer_output_tokens": "histogram",
    "step_tokens": "histogram",
}
VLLM = {
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "num_requests_waiting_by_reason": "gauge",
    "kv_cache_usage_perc": "gauge",
    "engine_sleep_state": "gauge",
    "cache_config_info": "gauge",
    "prompt_tokens": "counter",
    "prompt_tokens_by_source": "counter",
    "prompt_tokens_cached": "counter",
    "generation_tokens": "counter",
    "prefix_cache_queries": "counter",
    "prefix_cache_hits": "counter",
    "external_prefix_cache_queries": "counter",
    "external_prefix_cache_hits": "counter",
    "mm_cache_queries": "counter",
    "mm_cache_hits": "counter",
    "num_preemptions": "counter",
    "request_success": "counter",
    "admission_rejections": "counter",
    "spec_decode_num_drafts": "counter",
    "spec_decode_num_draft_tokens": "counter",
    "spec_decode_num_accepted_tokens": "counter",
    "time_to_first_token_seconds": "histogram",
    "inter_token_latency_seconds": "histogram",
    "request_time_per_output_token_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram",
    "request_queue_time_seconds": "histogram",
    "request_prefill_time_seconds": "histogram",
    "request_decode_time_seconds": "histogram",
    "request_inference_time_seconds": "histogram",
    "request_prompt_tokens": "histogram",
    "request_generation_tokens": "histogram",
    "request_max_num_generation_tokens": "histogram",
    "request_params_max_tokens": "histogram",
    "request_prefill_kv_computed_tokens": "histogram",
    "request_params_n": "histogram",
    "request_num_preemptions": "histogram",
    "iteration_tokens_total": "histogram",
}
FACTS = ServingFacts(model_name='a "b"\\', max_model_len=2048, block_size=16, enable_prefix_caching=True)
STATS = EngineStats(
    num_running=3,
    num_waiting=7,
    num_blocks=100,
    num_free_blocks=25,
    num_steps=11,
    num_computed_tokens=1200,
    num_output_tokens=130,
    num_preemptions=14,
    num_waiting_for_blocks=2,
    num_queued_tokens=1500,
    num_cached_blocks=16,
    num_evicted_blocks=17,
    num_queried_tokens=1800,
    num_hit_tokens=190,
    num_refused_queue_full=20,
    num_refused_slo=21,
    num_leased_places=1000,
    num_filled_places=970,
    step_s=22.5,
    native_s=21.5,
)


def page(*, has_vllm_names: bool = True, answers: AnswerCounts | None = None) -> dict[str, Metric]:
    steps = StepCounts()
    record = StepRecord(
        num_rows=2,
        num_tokens=9,
        num_prompt_tokens=8,
        num_drawn=1,
        step_s=0.1,
        native_s=0.09,
        itl_s=(0.2, 0.4),
    )
    steps.on_step(record)
    text = MetricsPage(
        facts=FACTS,
        engine=STATS,
        steps=steps,
        answers=answers or AnswerCounts(),
        has_vllm_names=has_vllm_names,
    ).text()
    return {family.name: family for family in text_string_to_metric_families(text.decode())}


def test_names_and_types() -> None:
    own = {f"headrace:{name}": kind for name, kind in OWN.items()}
    vllm = {f"vllm:{name}": kind for name, kind in VLLM.items()}
    # The text format has no type for a histogram whose name ends as a counter's: the parser keeps the name.
    assert {name: family.type for name, family in page(has_vllm_names=False).items()} == own
    assert {name: family.type for name, family in page().items()} == own | vllm


def test_every_sample_has_the_base_labels() -> None:
    for name, family in page().items():
        assert family.samples
        for sample in family.samples:
            if name == "vllm:cache_config_info":
                continue  # as there, without the model's name
            assert sample.labels["model_name"] == 'a "b"\\'
            assert sample.labels.get("engine") == ("0" if name.startswith("vllm:") else None)


def values(family: Metric, label: str | None = None) -> dict[str, float]:
    return {sample.labels[label] if label else "": sample.value for sample in family.samples}


def test_engine_numbers() -> None:
    families = page()
    assert values(families["headrace:running_answers"]) == {"": 3}
    assert values(families["headrace:waiting_answers"], "reason") == {"capacity": 5, "kv": 2}
    assert values(families["headrace:kv_usage_ratio"]) == {"": 0.75}
    assert round(values(families["headrace:kv_paging_waste_ratio"])[""], 9) == 0.03
    assert values(families["headrace:refused_requests"], "reason") == {
        "queue_full": 20,
        "slo_unreachable": 21,
    }
    assert values(families["headrace:step_seconds"]) == {"": 22.5}
    assert values(families["headrace:native_seconds"]) == {"": 21.5}
    assert values(families["vllm:num_requests_waiting"]) == {"": 7}
    assert values(families["vllm:num_requests_waiting_by_reason"], "reason") == {"capacity": 7, "deferred": 0}
    assert values(families["vllm:kv_cache_usage_perc"]) == {"": 0.75}
    (info,) = families["vllm:cache_config_info"].samples
    assert info.labels == {
        "engine": "0",
        "block_size": "16",
        "num_gpu_blocks": "100",
        "enable_prefix_caching": "True",
    }


def test_token_buckets_end_at_the_longest_sequence() -> None:
    for name in ("headrace:answer_prompt_tokens", "vllm:request_prompt_tokens"):
        bounds = [s.labels["le"] for s in page()[name].samples if s.name.endswith("_bucket")]
        assert bounds[-3:] == ["1000.0", "2000.0", "+Inf"]


def test_answers() -> None:
    counts = AnswerCounts()
    wait = WaitSplit(tokenize_s=0.1, queue_s=0.2, other_prompts_s=0.3, own_prompt_s=0.4)
    first = FirstText(
        wait=wait, delivery_s=0.5, started_s=0.25, num_prompt=30, num_cached=10, opens_prompt=True
    )
    counts.on_first_text(first)
    end = AnswerEnd(
        reason="length", first=first, e2e_s=3.5, num_prompt=30, num_cached=10, num_output=5,
        opens_prompt=True, n=2, max_tokens=5, num_preemptions=1,
    )  # fmt: skip
    counts.on_end(end)
    queued = AnswerEnd(
        reason="abort", first=None, e2e_s=9.0, num_prompt=30, num_cached=0, num_output=0,
        opens_prompt=False, n=2, max_tokens=5, num_preemptions=None,
    )  # fmt: skip
    counts.on_end(queued)
    families = page(answers=counts)

    def total(name: str, **labels: str) -> tuple[float, float]:
        samples = [s for s in families[name].samples if labels.items() <= s.labels.items()]
        by_name = {sample.name.removeprefix(name): sample.value for sample in samples}
        return by_name["_count"], round(by_name["_sum"], 9)

    assert total("headrace:ttft_seconds") == (1, 1.5)
    assert total("headrace:ttft_cause_seconds", cause="delivery") == (1, 0.5)
    assert total("headrace:ttft_cause_seconds", cause="other_prompts") == (1, 0.3)
    assert total("headrace:ttft_cause_seconds", cause="fetch") == (1, 0.0)
    assert total("headrace:itl_seconds") == (2, 0.6)
    assert total("headrace:tpot_seconds") == (1, 0.5)
    assert total("headrace:e2e_seconds") == (2, 12.5)
    assert total("vllm:request_queue_time_seconds") == (1, 0.15)
    assert total("vllm:request_prefill_time_seconds") == (1, 0.75)
    assert total("vllm:request_decode_time_seconds") == (1, 2.0)
    assert total("vllm:request_inference_time_seconds") == (1, 3.25)
    assert total("vllm:request_prefill_kv_computed_tokens") == (1, 20)
    assert total("vllm:request_num_preemptions") == (1, 1)
    assert total("vllm:request_params_n") == (1, 2)
    assert values(families["headrace:answers"], "finish_reason") == {
        "stop": 0,
        "length": 1,
        "abort": 1,
        "error": 0,
    }
    assert values(families["headrace:prompt_tokens"]) == {"": 30}
    assert values(families["vllm:prompt_tokens_by_source"], "source") == {
        "local_compute": 20,
        "local_cache_hit": 10,
        "external_kv_transfer": 0,
    }

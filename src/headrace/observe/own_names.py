# SPDX-License-Identifier: Apache-2.0
"""Our own metrics, always shown. An answer is one choice of a request; a prompt with several answers counts
its tokens once."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from headrace.observe.counts import AnswerCounts, StepCounts
from headrace.observe.engine_numbers import EngineNumbers, ServingFacts
from headrace.observe.families import Families


def own_families(
    facts: ServingFacts, engine: EngineNumbers, steps: StepCounts, answers: AnswerCounts
) -> Iterator[Metric]:
    make = Families("headrace:", {"model_name": facts.model_name})
    yield from _engine(make, engine)
    yield make.counter("prompt_tokens", "Prompt tokens of requests.", answers.num_prompt_tokens)
    yield make.counter(
        "cached_tokens", "Of prompt_tokens, found in the prefix cache.", answers.num_cached_tokens
    )
    yield make.counters("answers", "Answers that ended, by why.", "finish_reason", answers.num_ended)
    yield make.histogram("ttft_seconds", "From a request's arrival to its first text.", answers.ttft)
    yield make.histograms(
        "ttft_cause_seconds",
        "What the time to the first text went to; the causes sum to ttft_seconds.",
        "cause",
        answers.ttft_causes,
    )
    yield make.histogram("itl_seconds", "Between two tokens of an answer, in the engine.", steps.itl)
    yield make.histogram("tpot_seconds", "Mean over an answer's tokens after the first.", answers.tpot)
    yield make.histogram("e2e_seconds", "From a request's arrival to the end of an answer.", answers.e2e)
    largest = facts.max_model_len
    yield make.histogram(
        "answer_prompt_tokens", "Prompt tokens before an answer.", answers.prompt_tokens, largest
    )
    yield make.histogram("answer_output_tokens", "Tokens of an answer.", answers.output_tokens, largest)
    yield make.histogram("step_tokens", "Tokens computed in a step.", steps.tokens)


def _engine(make: Families, engine: EngineNumbers) -> Iterator[Metric]:
    num_for_blocks = min(engine.num_waiting_for_blocks, engine.num_waiting)
    yield make.gauge("running_answers", "Answers being computed.", engine.num_running)
    yield make.gauges(
        "waiting_answers",
        "Answers that wait: for a place (capacity), or for want of KV blocks (kv).",
        "reason",
        {"capacity": engine.num_waiting - num_for_blocks, "kv": num_for_blocks},
    )
    yield make.gauge("queued_tokens", "Prompt tokens of those that wait.", engine.num_queued_tokens)
    yield make.gauge("kv_usage_ratio", "KV blocks in use, of all.", engine.kv_usage)
    yield make.gauge(
        "kv_paging_waste_ratio", "Token places in held blocks that hold nothing.", engine.paging_waste
    )
    yield make.gauge("kv_blocks", "KV blocks there are.", engine.num_blocks)
    yield make.gauge("cached_blocks", "KV blocks findable by their contents.", engine.num_cached_blocks)
    yield make.counter("generated_tokens", "Tokens drawn.", engine.num_output_tokens)
    yield make.counter(
        "computed_tokens", "Tokens computed, those computed again included.", engine.num_computed_tokens
    )
    yield make.counter(
        "prefix_queried_tokens", "Prompt tokens looked up in the prefix cache.", engine.num_queried_tokens
    )
    yield make.counter("prefix_hit_tokens", "Of prefix_queried_tokens, found there.", engine.num_hit_tokens)
    yield make.counter("evicted_blocks", "Cached blocks given up for others.", engine.num_evicted_blocks)
    yield make.counter(
        "preemptions", "Times that an answer lost its blocks to others.", engine.num_preemptions
    )
    yield make.counters(
        "refused_requests",
        "Requests refused with 429, by why.",
        "reason",
        {"queue_full": engine.num_refused_queue_full, "slo_unreachable": engine.num_refused_slo},
    )
    yield make.counter("steps", "Steps computed.", engine.num_steps)
    yield make.counter("step_seconds", "Time in steps.", engine.step_s)
    yield make.counter("native_seconds", "Of step_seconds, inside the computation.", engine.native_s)

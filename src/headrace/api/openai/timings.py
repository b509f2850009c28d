# SPDX-License-Identifier: Apache-2.0
"""Where an answer's time went, as responses tell it: `timings` in our words, `metrics` in vLLM's. Both are of
a call's first choice; null stands for what never came."""

from __future__ import annotations

from headrace.observe.answers import AnswerEnd
from headrace.observe.counts import TTFT_CAUSES, cause_s

Report = dict[str, object]


def timings_of(end: AnswerEnd) -> Report:
    """The causes sum to ttft_ms."""
    first = end.first
    causes: Report = {
        f"{cause}_ms": None if first is None else _ms(cause_s(first, cause)) for cause in TTFT_CAUSES
    }
    return {
        "ttft_ms": None if first is None else _ms(first.ttft_s),
        **causes,
        "e2e_ms": _ms(end.e2e_s),
        "tpot_ms": _ms(end.tpot_s),
        "num_preemptions": end.num_preemptions,
    }


def vllm_metrics_of(end: AnswerEnd) -> Report:
    first, decode_s = end.first, end.decode_s
    has_rate = decode_s is not None and decode_s > 0 and end.num_output > 1
    return {
        "time_to_first_token_ms": None if first is None else _ms(first.ttft_s),
        "generation_time_ms": _ms(decode_s),
        "queue_time_ms": None if first is None else _ms(first.queue_s),
        "mean_itl_ms": _ms(end.tpot_s),
        "tokens_per_second": (end.num_output - 1) / decode_s if has_rate and decode_s else None,
        "speculative_decoding": None,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000

# SPDX-License-Identifier: Apache-2.0
"""What is counted while the engine steps and answers go out. The engine's thread writes the counts of steps,
the event loop's those of answers; whoever shows them only reads."""

from __future__ import annotations

from headrace.core.events import WAIT_CAUSES, StepRecord
from headrace.observe.answers import AnswerEnd, FirstText
from headrace.observe.histogram import (
    ITL_BOUNDS,
    LATENCY_BOUNDS,
    N_BOUNDS,
    PREEMPTION_BOUNDS,
    STEP_TOKEN_BOUNDS,
    TOKEN_BOUNDS,
    TTFT_BOUNDS,
    Histogram,
)

# WAIT_CAUSES without their unit, and what comes after the engine's first token.
TTFT_CAUSES = (*(cause.removesuffix("_s") for cause in WAIT_CAUSES), "delivery")
END_REASONS = ("stop", "length", "abort", "error")


class StepCounts:
    """Of the engine's steps."""

    def __init__(self) -> None:
        self.tokens = Histogram(STEP_TOKEN_BOUNDS)  # of a step
        self.itl = Histogram(ITL_BOUNDS)

    def on_step(self, record: StepRecord) -> None:
        self.tokens.add(record.num_tokens)
        for gap_s in record.itl_s:
            self.itl.add(gap_s)


class AnswerCounts:
    """Of answers: each counts by itself, but for prompt tokens, which count once a prompt."""

    def __init__(self) -> None:
        self.num_prompt_tokens = self.num_cached_tokens = 0
        self.num_ended = dict.fromkeys(END_REASONS, 0)
        self.ttft = Histogram(TTFT_BOUNDS)
        self.ttft_causes = {cause: Histogram(TTFT_BOUNDS) for cause in TTFT_CAUSES}
        self.tpot = Histogram(ITL_BOUNDS)
        self.e2e = Histogram(LATENCY_BOUNDS)
        self.queue = Histogram(LATENCY_BOUNDS)
        self.prefill = Histogram(LATENCY_BOUNDS)
        self.decode = Histogram(LATENCY_BOUNDS)
        self.inference = Histogram(LATENCY_BOUNDS)
        self.prompt_tokens = Histogram(TOKEN_BOUNDS)
        self.output_tokens = Histogram(TOKEN_BOUNDS)
        self.max_tokens = Histogram(TOKEN_BOUNDS)
        self.computed_prompt_tokens = Histogram(TOKEN_BOUNDS)
        self.n = Histogram(N_BOUNDS)
        self.preemptions = Histogram(PREEMPTION_BOUNDS)

    def on_first_text(self, first: FirstText) -> None:
        self.ttft.add(first.ttft_s)
        for cause, histogram in self.ttft_causes.items():
            histogram.add(cause_s(first, cause))
        self.queue.add(first.queue_s)
        self.prefill.add(first.prefill_s)
        if first.opens_prompt:
            self._count_prompt(first.num_prompt, first.num_cached)

    def on_end(self, end: AnswerEnd) -> None:
        self.num_ended[end.reason] += 1
        self.e2e.add(end.e2e_s)
        self.prompt_tokens.add(end.num_prompt)
        self.output_tokens.add(end.num_output)
        if end.first is not None and end.decode_s is not None:
            self.decode.add(end.decode_s)
            self.inference.add(max(end.e2e_s - end.first.started_s, 0.0))
            self.computed_prompt_tokens.add(end.num_prompt - end.num_cached)
        elif end.opens_prompt and end.reason in ("stop", "length"):  # nothing but the prompt was asked for
            self._count_prompt(end.num_prompt, end.num_cached)
        if end.tpot_s is not None:
            self.tpot.add(end.tpot_s)
        if end.opens_prompt:
            self.n.add(end.n)
        if end.max_tokens is not None:
            self.max_tokens.add(end.max_tokens)
        if end.num_preemptions is not None:
            self.preemptions.add(end.num_preemptions)

    def _count_prompt(self, num_prompt: int, num_cached: int) -> None:
        self.num_prompt_tokens += num_prompt
        self.num_cached_tokens += num_cached


def cause_s(first: FirstText, cause: str) -> float:
    """What one of TTFT_CAUSES took of the time to the first text."""
    return first.delivery_s if cause == "delivery" else float(getattr(first.wait, f"{cause}_s"))

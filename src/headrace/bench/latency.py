# SPDX-License-Identifier: Apache-2.0
"""The speed of one request at a time, as its caller sees it: everything between submitting it to an engine
and hearing of its tokens counts, planning and sampling included."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headrace.bench.spread import Spread, spread_of
from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.events import Event, Failed, Finished, Sink, TokenEvent
from headrace.core.request import GenerateRequest, SamplingParams

Submit = Callable[[GenerateRequest, Sink], None]
RESULT_TIMEOUT_S = 600.0  # for one event; a machine that needs longer is not being measured any more


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """When each output token arrived, in seconds after the request was submitted."""

    num_prompt: int
    arrivals_s: tuple[float, ...]

    @property
    def ttft_s(self) -> float:
        return self.arrivals_s[0]

    @property
    def tpot_s(self) -> float:
        return (self.arrivals_s[-1] - self.arrivals_s[0]) / (len(self.arrivals_s) - 1)

    @property
    def itl_s(self) -> tuple[float, ...]:
        return tuple(
            after - before for before, after in zip(self.arrivals_s, self.arrivals_s[1:], strict=False)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyPlan:
    """What to measure: whole requests of this size, and as many after a prompt of one token."""

    prompt_tokens: int
    output_tokens: int
    repetitions: int

    def __post_init__(self) -> None:
        for name, least in (("prompt_tokens", 1), ("output_tokens", 2), ("repetitions", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")

    @property
    def num_requests(self) -> int:
        return 1 + 2 * self.repetitions

    @property
    def num_tokens(self) -> int:
        """Of the longest request, prompt and output."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    ttft_s: Spread
    prompt_tokens_per_s: Spread  # prompt tokens / TTFT
    decode_tokens_per_s: Spread  # 1 / TPOT, after the prompt
    decode_from_one_tokens_per_s: Spread  # 1 / TPOT after a prompt of one token, as llama-bench's tg counts
    itl_s: Spread  # after the prompt


def measure_latency(
    submit: Submit, plan: LatencyPlan, vocab_size: int, on_request: Callable[[], object] = lambda: None
) -> Latency:
    """Time the plan's requests one after another; the first is a warm-up and not counted. Prompts are
    random ids, others each time, so that no cache can help."""
    random = np.random.default_rng(0)

    def timed(prompt_tokens: int, number: int) -> RequestTiming:
        prompt_ids = tuple(random.integers(0, vocab_size, prompt_tokens).tolist())
        timing = time_request(submit, _request(f"bench-{number}", prompt_ids, plan.output_tokens))
        on_request()
        return timing

    timed(plan.prompt_tokens, 0)
    full = [timed(plan.prompt_tokens, number) for number in range(1, plan.repetitions + 1)]
    short = [timed(1, plan.repetitions + number) for number in range(1, plan.repetitions + 1)]
    return Latency(
        ttft_s=spread_of([timing.ttft_s for timing in full]),
        prompt_tokens_per_s=spread_of([timing.num_prompt / timing.ttft_s for timing in full]),
        decode_tokens_per_s=spread_of([1 / timing.tpot_s for timing in full]),
        decode_from_one_tokens_per_s=spread_of([1 / timing.tpot_s for timing in short]),
        itl_s=spread_of([gap for timing in full for gap in timing.itl_s]),
    )


def time_request(submit: Submit, request: GenerateRequest) -> RequestTiming:
    """Submit a request of one sequence and wait for its end. Raises HeadraceError if it fails."""
    heard: queue.SimpleQueue[tuple[float, Event]] = queue.SimpleQueue()
    begin_s = time.perf_counter()
    submit(request, lambda event: heard.put((time.perf_counter(), event)))
    arrivals_s: list[float] = []
    while True:
        now_s, event = heard.get(timeout=RESULT_TIMEOUT_S)
        if isinstance(event, TokenEvent):
            arrivals_s += [now_s - begin_s] * len(event.tokens)
        elif isinstance(event, Failed):
            raise HeadraceError(f"the request failed: {event.message}")
        elif isinstance(event, Finished):
            break
    if len(arrivals_s) != request.params.max_tokens:
        raise HeadraceError(f"{len(arrivals_s)} tokens came where {request.params.max_tokens} were due")
    return RequestTiming(len(request.prompt_ids), tuple(arrivals_s))


def _request(request_id: str, prompt_ids: tuple[int, ...], output_tokens: int) -> GenerateRequest:
    params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
    return GenerateRequest(request_id=request_id, prompt_ids=prompt_ids, params=params)

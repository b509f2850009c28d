# SPDX-License-Identifier: Apache-2.0
"""What the engine tells a request's caller. Small, frozen, in order per sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Literal

from headrace.core.plan import TokenResult

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitSplit:
    """Where the time from a request's arrival to its first token went, in seconds; the sum is all of it."""

    tokenize_s: float = 0.0  # before the engine had it: body, template, token ids
    grammar_s: float = 0.0  # compiling a grammar
    queue_s: float = 0.0  # no place among the running, or the step at hand had to end first
    kv_pressure_s: float = 0.0  # no KV blocks: for want of them it could not start, or lost its own
    other_prompts_s: float = 0.0  # steps went to other rows' prompts
    other_answers_s: float = 0.0  # steps went to other rows' answers
    fetch_s: float = 0.0  # bringing cached tokens' K/V into its blocks
    own_prompt_s: float = 0.0  # computing its own prompt

    @property
    def total_s(self) -> float:
        return sum(float(getattr(self, cause)) for cause in WAIT_CAUSES)


WAIT_CAUSES = tuple(cause.name for cause in fields(WaitSplit))


@dataclass(frozen=True, slots=True)
class FirstToken:
    """A sequence's first token is there: right before its first TokenEvent. Times are `time.monotonic()`."""

    request_id: str
    index: int
    at_s: float  # when; WaitSplit.total_s after the arrival
    wait: WaitSplit
    num_cached: int  # prompt tokens whose K/V was found in the cache
    started_s: float | None = None  # when it was first given a part of a step
    foreseen_s: float | None = None  # what WaitSplit.total_s was to be, where a target made somebody look


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceTimes:
    """`time.monotonic()` of the stations on a sequence's way; None: it never came there."""

    arrival_s: float
    started_s: float | None = None  # first given a part of a step
    first_token_s: float | None = None
    end_s: float


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A sequence moved on by these tokens."""

    request_id: str
    index: int  # which of the request's n sequences
    tokens: tuple[TokenResult, ...]


@dataclass(frozen=True, slots=True)
class PromptScored:
    """Log probabilities of prompt tokens 1 .. num_prompt-1 (the first has none), once per request,
    before the first TokenEvent, when `prompt_logprobs` was asked for."""

    request_id: str
    tokens: tuple[TokenResult, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a sequence. `stop`: an end token (drawn, counted, not part of the text) or a
    stop token id; `length`: a limit; `abort`: the caller gave up."""

    request_id: str
    index: int
    reason: FinishReason
    num_prompt: int
    num_output: int  # tokens drawn, the end token included
    # How it came about. Two ends are equal when the answers are.
    num_cached: int = field(default=0, compare=False)  # of num_prompt, found in the cache when it started
    num_preemptions: int = field(default=0, compare=False)
    times: SequenceTimes | None = field(default=None, compare=False)  # None: whoever made it keeps none


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a whole request that broke after it was accepted."""

    request_id: str
    message: str


Event = FirstToken | TokenEvent | PromptScored | Finished | Failed
Sink = Callable[[Event], None]  # called on the engine's thread: must not block and must not raise


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step as it was, for whoever keeps count."""

    num_rows: int
    num_tokens: int  # computed
    num_prompt_tokens: int  # of them prompt tokens, those computed again after a preemption included
    num_drawn: int
    step_s: float  # from this step's start to the next one's
    native_s: float  # of that, inside the backend's computation
    itl_s: tuple[float, ...]  # the gaps that ended with it, of sequences that had drawn before


StepSink = Callable[[StepRecord], None]  # as Sink

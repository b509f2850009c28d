# SPDX-License-Identifier: Apache-2.0
"""What the engine tells a request's caller. Small, frozen, in order per sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from headrace.core.plan import TokenResult

FinishReason = Literal["stop", "length", "abort"]


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


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a whole request that broke after it was accepted."""

    request_id: str
    message: str


Event = TokenEvent | PromptScored | Finished | Failed
Sink = Callable[[Event], None]  # called on the engine's thread: must not block and must not raise

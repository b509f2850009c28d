# SPDX-License-Identifier: Apache-2.0
"""What an answer tells of itself when its first text is handed over, and when it ends. Durations in seconds;
all but differences count from the request's arrival."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from headrace.core.events import WaitSplit

EndReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstText:
    """The engine's first token came, and with it or later the first text that could be shown (or the end)."""

    wait: WaitSplit  # until the engine's first token
    delivery_s: float  # from that one to the text
    started_s: float  # when it first had a part of a step
    num_prompt: int
    num_cached: int  # of num_prompt
    opens_prompt: bool  # the first of the answers to its prompt: counts its tokens

    @property
    def token_s(self) -> float:
        return self.wait.total_s

    @property
    def ttft_s(self) -> float:
        return self.wait.total_s + self.delivery_s

    @property
    def queue_s(self) -> float:
        """From when the engine had it to its start, whatever held it up."""
        return max(self.started_s - self.wait.tokenize_s - self.wait.grammar_s, 0.0)

    @property
    def prefill_s(self) -> float:
        """From its start to the engine's first token."""
        return max(self.token_s - self.started_s, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerEnd:
    reason: EndReason
    first: FirstText | None  # None: it ended before that
    e2e_s: float
    num_prompt: int
    num_cached: int
    num_output: int  # tokens counted
    opens_prompt: bool
    n: int  # answers to its prompt
    max_tokens: int | None  # as asked for
    # None: the answer ended at a stop string, before the engine had told.
    num_preemptions: int | None

    @property
    def decode_s(self) -> float | None:
        """From the first text to the end."""
        return None if self.first is None else max(self.e2e_s - self.first.ttft_s, 0.0)

    @property
    def tpot_s(self) -> float | None:
        """The mean time of an output token after the first."""
        if self.decode_s is None or self.num_output < 2:
            return None
        return self.decode_s / (self.num_output - 1)


class AnswerSink(Protocol):
    """Whoever keeps count of answers. Must not block or raise."""

    def on_first_text(self, first: FirstText) -> None: ...

    def on_end(self, end: AnswerEnd) -> None: ...

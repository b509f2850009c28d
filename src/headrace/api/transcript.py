# SPDX-License-Identifier: Apache-2.0
"""The text of one answer, built from the engine's events for one sequence: detokenised, cut at stop
strings, tokens counted. It knows no threads, no HTTP and no engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.api.token_trace import TokenTrace, TracedToken
from headrace.core.events import Finished
from headrace.core.plan import TokenResult
from headrace.core.request import SamplingParams
from headrace.text.assembler import TextAssembler
from headrace.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Finish:
    reason: Literal["stop", "length", "abort"]
    stop: str | int | None  # the stop string or stop token id that matched; None for an end token


@dataclass(frozen=True, slots=True)
class Delta:
    """What an answer gained. Deltas of a choice joined are its whole text; the last one has `finish`."""

    choice: int
    text: str
    token_ids: tuple[int, ...]  # drawn and counted since the last delta, the end token included
    traced: tuple[TracedToken, ...]  # empty unless log probabilities were asked for
    num_output: int  # tokens counted so far
    finish: Finish | None


class Transcript:
    """One answer as it grows. Tokens behind a stop match are neither shown nor counted, so that a
    streamed answer has the same usage as a whole one, however many tokens come at once."""

    def __init__(
        self, choice: int, tokenizer: Tokenizer, params: SamplingParams, *, skip_special: bool
    ) -> None:
        self._choice = choice
        self._stop_token_ids = frozenset(params.stop_token_ids)
        self._shows_stop = params.include_stop_str_in_output
        ends = frozenset() if params.ignore_eos else tokenizer.eos_ids
        self._silent_ends = ends | (frozenset() if self._shows_stop else self._stop_token_ids)
        self._assembler = TextAssembler(
            tokenizer, stop=params.stop, include_stop=self._shows_stop, skip_special=skip_special
        )
        self._trace: TokenTrace | None = None
        if params.logprobs is not None:
            self._trace = TokenTrace(tokenizer, skip_special=skip_special)
        self._num_output = 0
        self._num_chars = 0
        self._unsent_ids: list[int] = []
        self._last_token: int | None = None
        self.is_finished = False

    def push(self, tokens: tuple[TokenResult, ...]) -> Delta | None:
        """Tokens drawn. None when they give nothing to show yet."""
        end = tokens[-1:] if tokens and tokens[-1].token in self._silent_ends else ()
        body = tokens[: len(tokens) - len(end)]
        gained = self._assembler.push([result.token for result in body])
        finish = None
        if gained.stopped is not None:
            body, end = body[: gained.num_tokens_used], ()
            finish = Finish("stop", gained.stopped)
        self._count(body, end)
        return self._delta(gained.text, finish)

    def finish(self, event: Finished) -> Delta | None:
        """The engine is done with this sequence."""
        text = self._assembler.flush()
        if self._assembler.stopped is not None:  # a match that was waiting for a longer one
            return self._delta(text, Finish("stop", self._assembler.stopped))
        if event.reason != "stop":
            return self._delta(text, Finish(event.reason, None))
        stop = self._last_token if self._last_token in self._stop_token_ids else None
        return self._delta(text, Finish("stop", stop))

    def _count(self, body: tuple[TokenResult, ...], end: tuple[TokenResult, ...]) -> None:
        used = [result.token for result in body + end]
        self._unsent_ids += used
        self._num_output += len(used)
        self._last_token = used[-1] if used else self._last_token
        if self._trace is not None:
            self._trace.push(body)
            for result in end:
                self._trace.push_silent(result)

    def _delta(self, text: str, finish: Finish | None) -> Delta | None:
        if not text and finish is None:
            return None
        self._num_chars += len(text)
        self.is_finished = finish is not None
        traced: tuple[TracedToken, ...] = ()
        if self._trace is not None:
            traced = self._trace.release(self._num_chars) if finish is None else self._rest()
        ids, self._unsent_ids = tuple(self._unsent_ids), []
        return Delta(self._choice, text, ids, traced, self._num_output, finish)

    def _rest(self) -> tuple[TracedToken, ...]:
        assert self._trace is not None
        return self._trace.finish(self._num_chars)

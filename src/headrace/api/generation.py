# SPDX-License-Identifier: Apache-2.0
"""Text as it comes: submits requests to the engine, carries its events over to the caller's thread, and gives
deltas of text. Server (through `async_stream`), `LLM` and `headrace run` all read answers through here.
It imports no HTTP library, and no asyncio, which `headrace run` would wait for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Protocol

from headrace.api.answer_clock import AnswerClock
from headrace.api.transcript import Delta, Transcript
from headrace.core.errors import HeadraceError
from headrace.core.events import Event, Failed, Finished, FirstToken, PromptScored, Sink, TokenEvent
from headrace.core.plan import TokenResult
from headrace.core.request import GenerateRequest
from headrace.engine.sampling import seed_of
from headrace.observe.answers import AnswerEnd, AnswerSink, EndReason
from headrace.text.tokenizer import Tokenizer


class GenerationFailed(HeadraceError):
    """An accepted request broke before its answer was complete."""


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Log probabilities of prompt tokens 1, 2, ..., before the choice's first delta."""

    choice: int
    tokens: tuple[TokenResult, ...]


Gain = Delta | PromptScores


class SubmitsRequests(Protocol):
    """What is needed of an engine here."""

    def submit_all(self, requests: Sequence[GenerateRequest], sink: Sink) -> None: ...

    def abort(self, request_id: str) -> None: ...


def choices_of(request: GenerateRequest) -> list[GenerateRequest]:
    """One request for each of the n answers, so that a stop string ends one without the others.
    Prompt log probabilities are asked for once."""
    choices: list[GenerateRequest] = []
    for k in range(request.n):
        params = request.params
        if params.seed is not None:
            params = replace(params, seed=seed_of(params.seed, k))
        if k:
            params = replace(params, prompt_logprobs=None)
        choices.append(replace(request, request_id=f"{request.request_id}-{k}", params=params, n=1))
    return choices


class Generation:
    """The answers to some requests of n == 1; choice i answers requests[i]. One thread or event loop
    reads it, and whoever does must end with `abort`, which does nothing when all is answered.

    Args:
        n: how many requests in a row have the same prompt.
        counts: hears of first texts and of ends.
    """

    def __init__(
        self,
        engine: SubmitsRequests,
        tokenizer: Tokenizer,
        requests: Sequence[GenerateRequest],
        *,
        n: int = 1,
        skip_special: bool = True,
        counts: AnswerSink | None = None,
    ) -> None:
        assert all(request.n == 1 for request in requests)
        self._engine = engine
        self._requests = requests
        self._choices = {request.request_id: i for i, request in enumerate(requests)}
        self._transcripts = [
            Transcript(i, tokenizer, request.params, skip_special=skip_special)
            for i, request in enumerate(requests)
        ]
        self._clocks = [
            AnswerClock(request, n, opens_prompt=i % n == 0) for i, request in enumerate(requests)
        ]
        self._n = n
        self._counts = counts
        self._open: set[str] = set()
        self._is_submitted = self._is_cancelled = False

    @property
    def is_done(self) -> bool:
        return self._is_submitted and not self._open

    @property
    def num_output(self) -> int:
        """Tokens counted so far, of all choices."""
        return sum(clock.num_output for clock in self._clocks)

    @property
    def num_cached(self) -> int:
        """Prompt tokens found in the cache, of each prompt once, as far as it is known."""
        return sum(clock.num_cached for clock in self._clocks[:: self._n])

    def end(self, choice: int) -> AnswerEnd | None:
        """How it came about, once it is over."""
        return self._clocks[choice].end

    def submit(self, sink: Sink) -> None:
        """Hand all requests to the engine, or, raising what it raises, none."""
        if self._is_cancelled:
            for request in self._requests:
                sink(Finished(request.request_id, 0, "abort", len(request.prompt_ids), 0))
        else:
            self._engine.submit_all(self._requests, sink)
        self._open.update(self._choices)
        self._is_submitted = True

    def cancel(self) -> None:
        """What is not answered yet ends here, as an answer that says so. May come before `submit`."""
        self._is_cancelled = True
        for request_id in self._open:
            self._engine.abort(request_id)

    def take(self, event: Event) -> Iterator[Gain]:
        """What one event adds. Raises GenerationFailed."""
        if event.request_id not in self._open:
            return  # what the engine still sent before it heard of an abort
        choice = self._choices[event.request_id]
        match event:
            case FirstToken():
                self._clocks[choice].note_token(event)
            case TokenEvent(tokens=tokens):
                yield from self._note(choice, self._transcripts[choice].push(tokens))
            case Finished(reason="abort") if not self._is_cancelled:
                self._give_up("error")
                raise GenerationFailed("The server stopped before this answer was complete")
            case Finished():
                self._clocks[choice].note_finished(event)
                yield from self._note(choice, self._transcripts[choice].finish(event))
            case PromptScored(tokens=tokens):
                yield PromptScores(choice, tokens)
            case Failed(message=message):
                self._give_up("error")
                raise GenerationFailed(message)

    def _note(self, choice: int, delta: Delta | None) -> Iterator[Gain]:
        if delta is None:
            return
        first = self._clocks[choice].note_delta(delta)
        if first is not None and self._counts is not None:
            self._counts.on_first_text(first)
        if delta.finish is not None:
            request_id = self._requests[choice].request_id
            self._open.discard(request_id)
            self._end(choice, delta.finish.reason)
            if isinstance(delta.finish.stop, str):
                self._engine.abort(request_id)  # a stop string, of which the engine knows nothing
        yield delta

    def abort(self) -> None:
        """Give up what is not answered yet."""
        self._give_up("abort")

    def _give_up(self, reason: EndReason) -> None:
        for request_id in self._open:
            self._engine.abort(request_id)
            self._end(self._choices[request_id], reason)
        self._open.clear()

    def _end(self, choice: int, reason: EndReason) -> None:
        end = self._clocks[choice].stop(reason)
        if self._counts is not None:
            self._counts.on_end(end)


def stream(generation: Generation) -> Iterator[Gain]:
    """For a caller with a thread to wait in. Closing the iterator aborts what is left."""
    inbox: SimpleQueue[Event] = SimpleQueue()
    generation.submit(inbox.put)
    try:
        while not generation.is_done:
            yield from generation.take(inbox.get())
    finally:
        generation.abort()

# SPDX-License-Identifier: Apache-2.0
"""Text as it comes: submits requests to the engine, carries its events over to the caller's thread, and gives
deltas of text. Server (through `async_stream`), `LLM` and `headrace run` all read answers through here.
It imports no HTTP library, and no asyncio, which `headrace run` would wait for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Protocol

from headrace.api.transcript import Delta, Transcript
from headrace.core.errors import HeadraceError
from headrace.core.events import Event, Failed, Finished, PromptScored, Sink, TokenEvent
from headrace.core.plan import TokenResult
from headrace.core.request import GenerateRequest
from headrace.engine.sampling import seed_of
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

    def submit(self, request: GenerateRequest, sink: Sink) -> None: ...

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
    reads it, and whoever does must end with `abort`, which does nothing when all is answered."""

    def __init__(
        self,
        engine: SubmitsRequests,
        tokenizer: Tokenizer,
        requests: Sequence[GenerateRequest],
        *,
        skip_special: bool = True,
    ) -> None:
        assert all(request.n == 1 for request in requests)
        self._engine = engine
        self._requests = requests
        self._choices = {request.request_id: i for i, request in enumerate(requests)}
        self._transcripts = [
            Transcript(i, tokenizer, request.params, skip_special=skip_special)
            for i, request in enumerate(requests)
        ]
        self._open: set[str] = set()

    @property
    def is_done(self) -> bool:
        return not self._open

    def submit(self, sink: Sink) -> None:
        """Hand all requests to the engine, or none: an error of one takes back the others."""
        try:
            for request in self._requests:
                self._engine.submit(request, sink)
                self._open.add(request.request_id)
        except BaseException:
            self.abort()
            raise

    def take(self, event: Event) -> Iterator[Gain]:
        """What one event adds. Raises GenerationFailed."""
        if event.request_id not in self._open:
            return  # what the engine still sent before it heard of an abort
        choice = self._choices[event.request_id]
        match event:
            case TokenEvent(tokens=tokens):
                yield from self._note(event.request_id, self._transcripts[choice].push(tokens))
            case Finished(reason="abort"):
                raise GenerationFailed("The server stopped before this answer was complete")
            case Finished():
                yield from self._note(event.request_id, self._transcripts[choice].finish(event))
            case PromptScored(tokens=tokens):
                yield PromptScores(choice, tokens)
            case Failed(message=message):
                raise GenerationFailed(message)

    def _note(self, request_id: str, delta: Delta | None) -> Iterator[Gain]:
        if delta is None:
            return
        if delta.finish is not None:
            self._open.discard(request_id)
            if isinstance(delta.finish.stop, str):
                self._engine.abort(request_id)  # a stop string, of which the engine knows nothing
        yield delta

    def abort(self) -> None:
        """Give up what is not answered yet."""
        for request_id in self._open:
            self._engine.abort(request_id)
        self._open.clear()


def stream(generation: Generation) -> Iterator[Gain]:
    """For a caller with a thread to wait in. Closing the iterator aborts what is left."""
    inbox: SimpleQueue[Event] = SimpleQueue()
    try:
        generation.submit(inbox.put)
        while not generation.is_done:
            yield from generation.take(inbox.get())
    finally:
        generation.abort()

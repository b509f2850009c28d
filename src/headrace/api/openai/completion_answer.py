# SPDX-License-Identifier: Apache-2.0
"""The shapes of a text completion: whole, and in chunks. Both are made from the same deltas. With `echo`
a choice's text begins with its prompt."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from headrace.api.answers import Answer
from headrace.api.async_stream import AsyncStream
from headrace.api.generation import PromptScores
from headrace.api.http.event_stream import Chunk
from headrace.api.openai.call import Call
from headrace.api.openai.completion_fields import CompletionFields
from headrace.api.openai.echo import Echo, echo_of
from headrace.api.openai.logprobs import (
    CompletionLogprobs,
    completion_logprobs,
    echo_logprobs,
    joined,
    prompt_logprobs,
)
from headrace.api.token_trace import TracedToken
from headrace.api.transcript import Delta, Finish
from headrace.core.plan import TokenResult

_NO_ECHO = Echo(text="", pieces=())


class _Shapes:
    """What the choices of one call look like."""

    def __init__(self, call: Call, fields: CompletionFields) -> None:
        self.call = call
        self.fields = fields
        self._echoes = [
            echo_of(prompt, call.model.tokenizer) if fields.echo else _NO_ECHO for prompt in call.prompts
        ]

    def echo(self, choice: int) -> Echo:
        return self._echoes[choice // self.call.n]

    def prompt_ids(self, choice: int) -> tuple[int, ...]:
        return self.call.prompts[choice // self.call.n].ids

    def logprobs(self, choice: int, traced: Sequence[TracedToken]) -> CompletionLogprobs | None:
        if self.fields.logprobs is None:
            return None
        return completion_logprobs(self.call.model.tokenizer, traced, len(self.echo(choice).text))

    def echo_logprobs(self, choice: int, scores: Sequence[TokenResult]) -> CompletionLogprobs | None:
        if self.fields.logprobs is None or not self.fields.echo:
            return None
        pieces = self.echo(choice).pieces
        if len(scores) < len(pieces) - 1:
            return None  # cancelled before the prompt was scored
        return echo_logprobs(self.call.model.tokenizer, pieces, scores)

    def choice(
        self, index: int, text: str, logprobs: CompletionLogprobs | None, finish: Finish | None
    ) -> dict[str, object]:
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": None if finish is None else finish.reason,
            "stop_reason": None if finish is None else finish.stop,
        }


def completion_answer(call: Call, fields: CompletionFields, answers: Sequence[Answer]) -> Chunk:
    shapes = _Shapes(call, fields)
    first_of = [answers[i - i % call.n] for i in range(len(answers))]  # has the prompt's scores
    choices = [
        _whole(shapes, i, answer, first.prompt_scores or ())
        for i, (answer, first) in enumerate(zip(answers, first_of, strict=True))
    ]
    return {"choices": choices}


def _whole(shapes: _Shapes, index: int, answer: Answer, scores: Sequence[TokenResult]) -> Chunk:
    logprobs = shapes.logprobs(index, answer.traced)
    echoed = shapes.echo_logprobs(index, scores)
    if echoed is not None and logprobs is not None:
        logprobs = joined(echoed, logprobs)
    choice = shapes.choice(index, shapes.echo(index).text + answer.text, logprobs, answer.finish)
    if shapes.fields.return_token_ids:
        choice |= {"prompt_token_ids": shapes.prompt_ids(index), "token_ids": answer.token_ids}
    if shapes.fields.prompt_logprobs is not None:
        choice["prompt_logprobs"] = prompt_logprobs(shapes.call.model.tokenizer, scores)
    return choice


async def completion_chunks(
    call: Call, fields: CompletionFields, gains: AsyncStream
) -> AsyncIterator[Sequence[Chunk]]:
    """Each choice: the prompt, when echoed, then chunks with text, the last of which has the finish
    reason."""
    shapes = _Shapes(call, fields)
    scores: dict[int, Sequence[TokenResult]] = {}
    started: set[int] = set()
    waiting: list[Delta] = []  # of choices whose prompt is scored by another one
    async for gain in gains:
        if isinstance(gain, PromptScores):
            scores[gain.choice] = gain.tokens
            ready, waiting = waiting, []
        elif gain.finish is not None and gain.finish.reason == "abort":
            scores.setdefault(gain.choice - gain.choice % call.n, ())  # they will not come
            ready, waiting = [*waiting, gain], []
        else:
            ready = [gain]
        chunks: list[dict[str, object]] = []
        for delta in ready:
            first = delta.choice - delta.choice % call.n
            if call.params.prompt_logprobs is not None and first not in scores:
                waiting.append(delta)
                continue
            if delta.choice not in started:
                started.add(delta.choice)
                chunks += _openers(shapes, delta.choice, scores.get(first, ()))
            chunks.append(_chunk(call, _part(shapes, delta)))
        if fields.includes_usage:
            usage = call.usage(gains) if fields.includes_running_usage else None
            for chunk in chunks:
                chunk["usage"] = usage
        if chunks:
            yield chunks


def _openers(shapes: _Shapes, index: int, scores: Sequence[TokenResult]) -> list[dict[str, object]]:
    """The chunk with the echoed prompt, if there is one."""
    if not shapes.fields.echo:
        return []
    logprobs = shapes.echo_logprobs(index, scores)
    choice = shapes.choice(index, shapes.echo(index).text, logprobs, None)
    return [_chunk(shapes.call, choice)]


def _part(shapes: _Shapes, delta: Delta) -> Chunk:
    logprobs = shapes.logprobs(delta.choice, delta.traced)
    choice = shapes.choice(delta.choice, delta.text, logprobs, delta.finish)
    if shapes.fields.return_token_ids:
        choice["token_ids"] = delta.token_ids
    return choice


def _chunk(call: Call, choice: Chunk) -> dict[str, object]:
    return {**call.head("text_completion"), "choices": [choice]}

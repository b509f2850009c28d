# SPDX-License-Identifier: Apache-2.0
"""The shapes of a chat completion: whole, and in chunks. Both are made from the same deltas."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from headrace.api.answers import Answer
from headrace.api.async_stream import AsyncStream
from headrace.api.generation import PromptScores
from headrace.api.http.event_stream import Chunk
from headrace.api.openai.call import Call
from headrace.api.openai.chat_fields import ChatFields
from headrace.api.openai.logprobs import chat_tokens, prompt_logprobs
from headrace.api.token_trace import TracedToken
from headrace.api.transcript import Delta


def chat_answer(call: Call, fields: ChatFields, answers: Sequence[Answer]) -> Chunk:
    body: dict[str, object] = {
        "choices": [_choice(call, fields, i, answer) for i, answer in enumerate(answers)]
    }
    if fields.return_token_ids:
        body["prompt_token_ids"] = call.prompts[0].ids
    if fields.prompt_logprobs is not None:
        body["prompt_logprobs"] = prompt_logprobs(call.model.tokenizer, answers[0].prompt_scores or ())
    return body


def _choice(call: Call, fields: ChatFields, index: int, answer: Answer) -> Chunk:
    assert answer.finish is not None
    choice: dict[str, object] = {
        "index": index,
        "message": {"role": "assistant", "content": answer.text, "refusal": None},
        "logprobs": _logprobs(call, fields, answer.traced, is_last=True),
        "finish_reason": answer.finish.reason,
        "stop_reason": answer.finish.stop,
    }
    if fields.return_token_ids:
        choice["token_ids"] = answer.token_ids
    return choice


async def chat_chunks(call: Call, fields: ChatFields, gains: AsyncStream) -> AsyncIterator[Sequence[Chunk]]:
    """Each choice: a chunk with the role, chunks with text, the last of which has the finish reason."""
    started: set[int] = set()
    async for gain in gains:
        if isinstance(gain, PromptScores):
            continue
        chunks: list[dict[str, object]] = []
        if gain.choice not in started:
            started.add(gain.choice)
            chunks.append(_chunk(call, _role_choice(gain.choice)))
            if fields.return_token_ids:
                chunks[0]["prompt_token_ids"] = call.prompts[0].ids
        chunks.append(_chunk(call, _delta_choice(call, fields, gain)))
        if fields.includes_usage:
            usage = call.usage(gains) if fields.includes_running_usage else None
            for chunk in chunks:
                chunk["usage"] = usage
        yield chunks


def _chunk(call: Call, choice: Chunk) -> dict[str, object]:
    return {**call.head("chat.completion.chunk"), "choices": [choice]}


def _role_choice(index: int) -> Chunk:
    delta = {"role": "assistant", "content": ""}
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _delta_choice(call: Call, fields: ChatFields, delta: Delta) -> Chunk:
    choice: dict[str, object] = {
        "index": delta.choice,
        "delta": {"content": delta.text} if delta.text else {},
        "logprobs": _logprobs(call, fields, delta.traced, is_last=delta.finish is not None),
        "finish_reason": None if delta.finish is None else delta.finish.reason,
    }
    if delta.finish is not None:
        choice["stop_reason"] = delta.finish.stop
    if fields.return_token_ids:
        choice["token_ids"] = delta.token_ids
    return choice


def _logprobs(
    call: Call, fields: ChatFields, traced: Sequence[TracedToken], *, is_last: bool
) -> Chunk | None:
    if not fields.logprobs:
        return None
    return {"content": chat_tokens(call.model.tokenizer, traced, is_last=is_last), "refusal": None}

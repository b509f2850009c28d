# SPDX-License-Identifier: Apache-2.0
"""What `LLM` gives back: whole answers as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.api.answers import Answer
from headrace.core.plan import TokenResult
from headrace.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Logprob:
    logprob: float
    rank: int | None  # 1 is the most likely; None when it is not among those asked for
    decoded_token: str


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    index: int
    text: str
    token_ids: list[int]
    finish_reason: Literal["stop", "length", "abort"]
    stop_reason: str | int | None  # the stop string or stop token id that matched
    logprobs: list[dict[int, Logprob]] | None  # one entry a token, when asked for
    cumulative_logprob: float | None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    request_id: str
    prompt: str | None  # None when it came as ids or messages
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None  # the first token has none
    outputs: list[CompletionOutput]


def completion_output(
    index: int, answer: Answer, tokenizer: Tokenizer, *, logprobs: bool
) -> CompletionOutput:
    assert answer.finish is not None
    scores = [token.result for token in answer.traced] if logprobs else None
    return CompletionOutput(
        index=index,
        text=answer.text,
        token_ids=answer.token_ids,
        finish_reason=answer.finish.reason,
        stop_reason=answer.finish.stop,
        logprobs=None if scores is None else [logprobs_of(score, tokenizer) for score in scores],
        cumulative_logprob=None if scores is None else sum(score.logprob for score in scores),
    )


def prompt_logprobs_of(
    scores: Sequence[TokenResult] | None, tokenizer: Tokenizer
) -> list[dict[int, Logprob] | None] | None:
    if scores is None:
        return None
    return [None, *(logprobs_of(score, tokenizer) for score in scores)]


def logprobs_of(score: TokenResult, tokenizer: Tokenizer) -> dict[int, Logprob]:
    """The most likely tokens at a place, and the token that is there."""
    entry = {
        token: Logprob(logprob, rank, name_of(tokenizer, token))
        for rank, (token, logprob) in enumerate(score.top, start=1)
    }
    if score.token not in entry:
        entry[score.token] = Logprob(score.logprob, None, name_of(tokenizer, score.token))
    return entry


def name_of(tokenizer: Tokenizer, token: int) -> str:
    """Readable text of one token: bytes that are no text of their own show as `bytes:\\xf0\\x9f`."""
    if tokenizer.is_control(token):
        return tokenizer.token_text(token)
    raw = tokenizer.token_bytes(token)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

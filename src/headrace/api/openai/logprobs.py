# SPDX-License-Identifier: Apache-2.0
"""Log probabilities in the shapes of chat and of text completions. Every number is finite: what is
impossible is -9999."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypedDict

from headrace.api.outputs import name_of
from headrace.api.token_trace import TracedToken
from headrace.core.plan import TokenResult
from headrace.text.tokenizer import Tokenizer

FLOOR = -9999.0


class ChatTop(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class ChatToken(ChatTop):
    top_logprobs: list[ChatTop]


class CompletionLogprobs(TypedDict):
    tokens: list[str]
    token_logprobs: list[float | None]
    text_offset: list[int]
    top_logprobs: list[dict[str, float] | None]


class PromptLogprob(TypedDict):
    logprob: float
    rank: int | None  # None when it is not among the most likely that were asked for
    decoded_token: str


def finite(logprob: float) -> float:
    return max(logprob, FLOOR) if math.isfinite(logprob) else FLOOR


def chat_tokens(tokenizer: Tokenizer, traced: Sequence[TracedToken], *, is_last: bool) -> list[ChatToken]:
    """The tokens of the content. `bytes` joined over all of them are the content exactly; tokens at the
    end that gave it nothing (an end token, a stop string that was cut) are left out."""
    kept = list(traced)
    while is_last and kept and not kept[-1].shown:
        kept.pop()
    return [
        {
            "token": name_of(tokenizer, token.result.token),
            "logprob": finite(token.result.logprob),
            "bytes": list(token.shown),
            "top_logprobs": [_chat_top(tokenizer, *pair) for pair in token.result.top],
        }
        for token in kept
    ]


def completion_logprobs(
    tokenizer: Tokenizer, traced: Sequence[TracedToken], offset: int
) -> CompletionLogprobs:
    """One entry for each counted token. `tokens` are slices of the text at `text_offset`, which counts
    from the start of the choice's text; `offset` is how much echoed prompt goes before."""
    return {
        "tokens": [token.piece for token in traced],
        "token_logprobs": [finite(token.result.logprob) for token in traced],
        "text_offset": [offset + token.start for token in traced],
        "top_logprobs": [_top(tokenizer, token.result, token.piece) for token in traced],
    }


def echo_logprobs(
    tokenizer: Tokenizer, pieces: Sequence[str], scores: Sequence[TokenResult]
) -> CompletionLogprobs:
    """The prompt's own tokens; nothing foretells the first. len(pieces) == len(scores) + 1."""
    offsets = [0]
    for piece in pieces:
        offsets.append(offsets[-1] + len(piece))
    return {
        "tokens": list(pieces),
        "token_logprobs": [None, *(finite(score.logprob) for score in scores)],
        "text_offset": offsets[:-1],
        "top_logprobs": [
            None,
            *(_top(tokenizer, score, piece) for score, piece in zip(scores, pieces[1:], strict=True)),
        ],
    }


def joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    return {
        "tokens": first["tokens"] + second["tokens"],
        "token_logprobs": first["token_logprobs"] + second["token_logprobs"],
        "text_offset": first["text_offset"] + second["text_offset"],
        "top_logprobs": first["top_logprobs"] + second["top_logprobs"],
    }


def prompt_logprobs(
    tokenizer: Tokenizer, scores: Sequence[TokenResult]
) -> list[dict[int, PromptLogprob] | None]:
    """vLLM's shape: for each prompt token the most likely ones there and itself."""
    return [None, *(_prompt_entry(tokenizer, score) for score in scores)]


def _prompt_entry(tokenizer: Tokenizer, score: TokenResult) -> dict[int, PromptLogprob]:
    entry: dict[int, PromptLogprob] = {
        token: {"logprob": finite(logprob), "rank": rank, "decoded_token": name_of(tokenizer, token)}
        for rank, (token, logprob) in enumerate(score.top, start=1)
    }
    if score.token not in entry:
        name = name_of(tokenizer, score.token)
        entry[score.token] = {"logprob": finite(score.logprob), "rank": None, "decoded_token": name}
    return entry


def _top(tokenizer: Tokenizer, result: TokenResult, piece: str) -> dict[str, float]:
    """The most likely tokens and the token itself, under the name it has in `tokens`."""
    top = {name_of(tokenizer, token): finite(logprob) for token, logprob in result.top}
    top[piece] = finite(result.logprob)
    return top


def _chat_top(tokenizer: Tokenizer, token: int, logprob: float) -> ChatTop:
    raw = b"" if tokenizer.is_control(token) else tokenizer.token_bytes(token)
    return {"token": name_of(tokenizer, token), "logprob": finite(logprob), "bytes": list(raw)}

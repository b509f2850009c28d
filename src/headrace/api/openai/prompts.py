# SPDX-License-Identifier: Apache-2.0
"""From a body's prompt to token ids. Text that could not fit however it is tokenised is refused before it
is; long text is tokenised beside the event loop."""

from __future__ import annotations

import asyncio
import functools
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from headrace.api.served_model import ServedModel
from headrace.core.errors import RequestError
from headrace.text.tokenizer import Tokenizer

LONG_TEXT_CHARS = 4096
MAX_PROMPTS = 1024
# Normalising may join characters before tokens are made of them; never more than a few into one.
MAX_CHARS_JOINED = 4

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prompt:
    ids: tuple[int, ...]
    text: str | None  # as sent; None when it came as ids


async def beside_loop_if_long(num_chars: int, work: Callable[[], T]) -> T:
    """A thread costs more than tokenising a short text, and less than holding up everybody."""
    return work() if num_chars <= LONG_TEXT_CHARS else await asyncio.to_thread(work)


def parse_prompts(value: object) -> list[str] | list[list[int]]:
    """A text, a list of texts, a list of ids, or a list of lists of ids. Raises RequestError."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value):
            return _checked_count(value)
        if all(type(item) is int for item in value):
            return [value]
        if all(isinstance(item, list) and all(type(one) is int for one in item) for item in value):
            return _checked_count(value)
    raise RequestError(
        "prompt must be a text, a list of token ids, or a list of one of these, with at least one entry, "
        f"got {reprlib.repr(value)}",
        param="prompt",
    )


async def encode_prompts(
    prompts: list[str] | list[list[int]], model: ServedModel, *, add_special_tokens: bool
) -> list[Prompt]:
    add_bos = None if add_special_tokens else False
    return [
        await encode_text(prompt, model, add_bos=add_bos)
        if isinstance(prompt, str)
        else Prompt(ids=tuple(prompt), text=None)
        for prompt in prompts
    ]


async def encode_text(text: str, model: ServedModel, *, add_bos: bool | None) -> Prompt:
    """Special markers in it are read as text."""
    encode = functools.partial(model.tokenizer.encode, text, add_bos=add_bos)

    def work() -> Prompt:
        check_could_fit(len(text), model, "prompt")
        return Prompt(ids=tuple(encode()), text=text)

    return await beside_loop_if_long(len(text), work)


def check_could_fit(num_chars: int, model: ServedModel, param: str) -> None:
    """Raise when the characters are more than a full context of the longest tokens."""
    if num_chars <= max(LONG_TEXT_CHARS, model.max_model_len):
        return
    num_tokens = num_chars // (MAX_CHARS_JOINED * _longest_token(model.tokenizer))
    if num_tokens > model.max_model_len:
        raise RequestError(
            f"The prompt has {num_chars} characters, which are more than {num_tokens} tokens, but at most "
            f"{model.max_model_len} fit in this model's context as it is served here",
            param=param,
            code="context_length_exceeded",
        )


@functools.lru_cache(maxsize=8)
def _longest_token(tokenizer: Tokenizer) -> int:
    """Characters of the vocabulary's longest token."""
    return max(len(tokenizer.token_text(token)) for token in range(tokenizer.vocab_size))


def _checked_count(prompts: list[T]) -> list[T]:
    if len(prompts) > MAX_PROMPTS:
        raise RequestError(f"prompt: at most {MAX_PROMPTS} are taken, got {len(prompts)}", param="prompt")
    return prompts

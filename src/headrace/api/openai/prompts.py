# SPDX-License-Identifier: Apache-2.0
"""From a body's prompt to token ids. Far too long text is refused by its beginning; long text is tokenised
beside the event loop."""

from __future__ import annotations

import asyncio
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from headrace.api.served_model import ServedModel
from headrace.core.errors import RequestError

LONG_TEXT_CHARS = 4096
MAX_PROMPTS = 1024
# Text of more characters than this for each token of the context is tried by its beginning first, then by
# twice as much of it, and so on: letters are many tokens soon, spaces only one in a hundred or so.
TRIAL_CHARS_PER_TOKEN = 8
# Cutting a text may make some tokens more than it has there as a whole.
TRIAL_MARGIN_TOKENS = 256

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prompt:
    ids: tuple[int, ...]
    text: str | None  # as sent; None when it came as ids


async def beside_loop_if_long(num_chars: int, work: Callable[[], T]) -> T:
    """A thread costs more than tokenising a short text, and less than holding up everybody."""
    return work() if num_chars <= LONG_TEXT_CHARS else await asyncio.to_thread(work)


def parse_prompts(value: object, max_model_len: int) -> list[str] | list[list[int]]:
    """A text, a list of texts, a list of ids, or a list of lists of ids. Raises RequestError."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if type(value[0]) is int and len(value) >= max_model_len:
            raise _too_long(len(value), max_model_len)  # without looking at millions of ids
        if all(type(item) is int for item in value):
            return [value]
        if len(value) > MAX_PROMPTS:
            raise RequestError(f"prompt: at most {MAX_PROMPTS} are taken, got {len(value)}", param="prompt")
        if all(isinstance(item, str) for item in value):
            return value
        if all(isinstance(item, list) for item in value):
            return [_parse_ids(item, max_model_len) for item in value]
    raise _bad_prompt(value)


async def encode_prompts(
    prompts: list[str] | list[list[int]], model: ServedModel, *, add_special_tokens: bool
) -> list[Prompt]:
    """Special markers in texts are read as text."""
    add_bos = None if add_special_tokens else False
    num_chars = sum(len(prompt) for prompt in prompts if isinstance(prompt, str))

    def work() -> list[Prompt]:
        return [_encode(prompt, model, add_bos) for prompt in prompts]

    return await beside_loop_if_long(num_chars, work)


def check_could_fit(text: str, model: ServedModel, param: str) -> None:
    """Raise when the beginning of a very long text alone fills the context. Raises RequestError."""
    num_chars = TRIAL_CHARS_PER_TOKEN * model.max_model_len
    while num_chars < len(text):
        num_tokens = len(model.tokenizer.encode(text[:num_chars], add_bos=False)) - TRIAL_MARGIN_TOKENS
        if num_tokens > model.max_model_len:
            raise _too_long(num_tokens, model.max_model_len, param)
        num_chars *= 2


def _encode(prompt: str | list[int], model: ServedModel, add_bos: bool | None) -> Prompt:
    if isinstance(prompt, list):
        return Prompt(ids=tuple(prompt), text=None)
    check_could_fit(prompt, model, "prompt")
    return Prompt(ids=tuple(model.tokenizer.encode(prompt, add_bos=add_bos)), text=prompt)


def _parse_ids(value: list[object], max_model_len: int) -> list[int]:
    if len(value) >= max_model_len:
        raise _too_long(len(value), max_model_len)
    ids = [item for item in value if type(item) is int]
    if not value or len(ids) < len(value):
        raise _bad_prompt(value)
    return ids


def _too_long(num_tokens: int, max_model_len: int, param: str = "prompt") -> RequestError:
    return RequestError(
        f"{param}: there are at least {num_tokens} tokens, but at most {max_model_len}, answer included, fit "
        f"in this model's context as it is served here. Shorten it.",
        param=param,
        code="context_length_exceeded",
    )


def _bad_prompt(value: object) -> RequestError:
    return RequestError(
        "prompt must be a text, a list of token ids, or a list of one of these, with at least one entry, "
        f"got {reprlib.repr(value)}",
        param="prompt",
    )

# SPDX-License-Identifier: Apache-2.0
"""The body fields of a chat completion."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from headrace.api.openai.fields import MAX_INT, AnswerFields, TopCount
from headrace.core.errors import RequestError
from headrace.core.request import SamplingParams


class ChatFields(AnswerFields):
    messages: Any = None  # checked by parse_messages, which names the message at fault
    max_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None  # outranks max_tokens
    logprobs: bool | None = None
    top_logprobs: TopCount | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


def chat_params(fields: ChatFields) -> SamplingParams:
    if fields.top_logprobs is not None and not fields.logprobs:
        raise RequestError("top_logprobs needs logprobs=true", param="top_logprobs")
    max_tokens = fields.max_completion_tokens
    return fields.sampling_params(
        max_tokens=fields.max_tokens if max_tokens is None else max_tokens,
        logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        prompt_logprobs=fields.prompt_logprobs,
    )

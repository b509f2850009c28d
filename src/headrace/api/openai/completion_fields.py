# SPDX-License-Identifier: Apache-2.0
"""The body fields of a text completion."""

from __future__ import annotations

from typing import Any

from headrace.api.openai.fields import AnswerFields, TopCount
from headrace.core.errors import RequestError
from headrace.core.request import SamplingParams


class CompletionFields(AnswerFields):
    prompt: Any = None  # checked by parse_prompts
    echo: bool | None = None
    logprobs: TopCount | None = None
    add_special_tokens: bool | None = None


def completion_params(fields: CompletionFields) -> SamplingParams:
    if fields.max_tokens == 0 and not fields.echo and fields.prompt_logprobs is None:
        raise RequestError(
            "max_tokens must be at least 1; 0 is for echo or prompt_logprobs", param="max_tokens"
        )
    prompt_logprobs = fields.prompt_logprobs
    if fields.echo and fields.logprobs is not None:
        prompt_logprobs = max(fields.logprobs, prompt_logprobs or 0)
    return fields.sampling_params(
        max_tokens=fields.max_tokens, logprobs=fields.logprobs, prompt_logprobs=prompt_logprobs
    )

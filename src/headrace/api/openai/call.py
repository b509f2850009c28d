# SPDX-License-Identifier: Apache-2.0
"""One call of an OpenAI route after all checks: what is asked of the engine, and what every piece of the
answer repeats."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.api.async_stream import AsyncStream
from headrace.api.generation import Generation, choices_of
from headrace.api.openai.fields import AnswerFields
from headrace.api.openai.prompts import Prompt
from headrace.api.openai.usage import Usage, usage_of
from headrace.api.served_model import ServedModel
from headrace.core.errors import RequestError
from headrace.core.request import GenerateRequest, SamplingParams

MAX_CHOICES = 1024  # of one call: prompts times n


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Choice i*n + k is answer k to prompt i."""

    answer_id: str
    model: ServedModel
    prompts: Sequence[Prompt]
    params: SamplingParams
    n: int
    skip_special: bool
    created_s: int = field(default_factory=lambda: int(time.time()))  # Unix time

    @property
    def num_prompt(self) -> int:
        """Tokens of all prompts."""
        return sum(len(prompt.ids) for prompt in self.prompts)

    def usage(self, num_output: int) -> Usage:
        return usage_of(self.num_prompt, num_output)

    def head(self, kind: str) -> dict[str, object]:
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created_s,
            "model": self.model.names[0],
        }

    def start(self) -> AsyncStream:
        """Submit to the engine. Raises RequestError for what it can never answer."""
        requests: list[GenerateRequest] = []
        for prompt in self.prompts:
            one = GenerateRequest(
                request_id=uuid.uuid4().hex, prompt_ids=prompt.ids, params=self.params, n=self.n
            )
            requests += choices_of(one)
        model = self.model
        return AsyncStream(
            Generation(model.engine, model.tokenizer, requests, skip_special=self.skip_special)
        )


def make_call(
    prefix: str, fields: AnswerFields, model: ServedModel, prompts: Sequence[Prompt], params: SamplingParams
) -> Call:
    n = fields.n or 1
    if n * len(prompts) > MAX_CHOICES:
        raise RequestError(
            f"{len(prompts)} prompts with n={n} are more than the {MAX_CHOICES} answers one call may ask for",
            param="n",
        )
    return Call(
        answer_id=f"{prefix}-{fields.request_id or uuid.uuid4().hex}",
        model=model,
        prompts=prompts,
        params=params,
        n=n,
        skip_special=fields.skip_special_tokens is not False,
    )

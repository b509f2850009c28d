# SPDX-License-Identifier: Apache-2.0
"""One call of an OpenAI route after all checks: what is asked of the engine, and what every piece of the
answer repeats."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.api.async_stream import AsyncStream
from headrace.api.generation import Generation, choices_of
from headrace.api.openai.fields import AnswerFields
from headrace.api.openai.prompts import Prompt
from headrace.api.openai.terms import Terms
from headrace.api.openai.timings import timings_of, vllm_metrics_of
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
    terms: Terms
    skip_special: bool
    created_s: int = field(default_factory=lambda: int(time.time()))  # Unix time

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.n

    @property
    def num_prompt(self) -> int:
        """Tokens of all prompts."""
        return sum(len(prompt.ids) for prompt in self.prompts)

    def usage(self, gains: AsyncStream) -> Usage:
        """As far as the answers have come."""
        return usage_of(self.num_prompt, gains.num_output, gains.num_cached)

    def reports(self, gains: AsyncStream, *, timings: bool, metrics: bool) -> Mapping[str, object]:
        """How the first choice, which has ended, came about."""
        end = gains.end(0)
        if end is None:
            return {}
        shown = {"timings": timings_of(end)} if timings else {}
        return {**shown, "metrics": vllm_metrics_of(end)} if metrics else shown

    def head(self, kind: str) -> dict[str, object]:
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created_s,
            "model": self.model.names[0],
        }

    def generation(self) -> Generation:
        """Not submitted yet."""
        requests: list[GenerateRequest] = []
        for prompt in self.prompts:
            requests += choices_of(self.terms.request(uuid.uuid4().hex, prompt.ids, self.params, self.n))
        model = self.model
        return Generation(
            model.engine,
            model.tokenizer,
            requests,
            n=self.n,
            skip_special=self.skip_special,
            counts=model.answer_counts,
        )


def make_call(
    prefix: str,
    fields: AnswerFields,
    model: ServedModel,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    terms: Terms,
) -> Call:
    return Call(
        answer_id=f"{prefix}-{fields.request_id or uuid.uuid4().hex}",
        model=model,
        prompts=prompts,
        params=params,
        n=fields.n or 1,
        terms=terms,
        skip_special=fields.skip_special_tokens is not False,
    )


def check_num_choices(num_prompts: int, fields: AnswerFields, model: ServedModel) -> None:
    """Before any prompt is tokenised. Raises RequestError, Overloaded."""
    n = fields.n or 1
    if n * num_prompts > MAX_CHOICES:
        raise RequestError(
            f"{num_prompts} prompts with n={n} are more than the {MAX_CHOICES} answers one call may ask for",
            param="n",
        )
    if n * num_prompts > 1:
        model.engine.check_room(n * num_prompts)

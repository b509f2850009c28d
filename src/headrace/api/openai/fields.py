# SPDX-License-Identifier: Apache-2.0
"""Body fields that chat and text completions share, with their types and limits, and how they become
`SamplingParams`. Strict: a number is not a string, NaN and 1e400 are not numbers."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from headrace.api.openai.refusals import check_extra_fields
from headrace.core.errors import RequestError
from headrace.core.request import MAX_LOGIT_BIAS, MAX_TOP_LOGPROBS, SamplingParams

MAX_N = 128
MAX_STOPS = 16  # OpenAI takes 4
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_INT = 2**31 - 1

Count = Annotated[int, Field(ge=0, le=MAX_INT)]
TopCount = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]


class Fields(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    def check_together(self) -> None:
        """What no field can say alone. Raises RequestError."""


class StreamOptions(Fields):
    include_usage: bool | None = None  # one chunk with the usage before [DONE]
    continuous_usage_stats: bool | None = None  # also the usage so far in every chunk
    include_obfuscation: bool | None = None  # OpenAI's padding against traffic analysis: never added here


class AnswerFields(Fields):
    """null means the same as leaving a field out."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    max_tokens: Count | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None  # wrapped modulo 2**64
    logit_bias: dict[str, float] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: TopCount | None = None
    return_token_ids: bool | None = None
    request_id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    priority: Annotated[int, Field(ge=-MAX_INT, le=MAX_INT)] | None = None  # lower goes first
    slo_ttft_ms: Annotated[float, Field(gt=0)] | None = None  # refuse when the first token would be later
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    deterministic: bool | None = None  # the same tokens in any company, or a refusal
    return_timings: bool | None = None

    def check_together(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options is for stream=true only", param="stream_options")
        if self.stream and self.prompt_logprobs is not None:
            raise RequestError("prompt_logprobs cannot be streamed", param="prompt_logprobs")

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def includes_running_usage(self) -> bool:
        return self.includes_usage and bool(
            self.stream_options is not None and self.stream_options.continuous_usage_stats
        )

    def sampling_params(
        self, *, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None
    ) -> SamplingParams:
        chosen = {
            name: value
            for name in (
                "temperature",
                "top_p",
                "top_k",
                "min_p",
                "repetition_penalty",
                "presence_penalty",
                "frequency_penalty",
                "seed",
                "include_stop_str_in_output",
                "ignore_eos",
                "min_tokens",
            )
            if (value := getattr(self, name)) is not None
        }
        return SamplingParams(
            **chosen,
            logit_bias=_logit_bias(self.logit_bias or {}),
            stop=_stops(self.stop),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            max_tokens=max_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )


B = TypeVar("B", bound=Fields)


def parse_fields(kind: type[B], body: Mapping[str, object]) -> B:
    """Check a body against its fields. Raises RequestError naming the field at fault."""
    try:
        fields = kind.model_validate(check_extra_fields(body, kind.model_fields))
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False)[0]) from None
    fields.check_together()
    return fields


def _refusal(error: ErrorDetails) -> RequestError:
    param = ""
    for part in error["loc"]:
        # Alternatives of a union appear in the path under their types' names, which clients never sent.
        if isinstance(part, int):
            param += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "float", "bool"):
            param += f".{part}" if param else part
    return RequestError(f"{param}: {error['msg']}, got {reprlib.repr(error['input'])}", param=param)


def _logit_bias(given: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    if len(given) > MAX_LOGIT_BIAS:
        raise RequestError(
            f"logit_bias: at most {MAX_LOGIT_BIAS} entries are taken, got {len(given)}", param="logit_bias"
        )
    pairs: list[tuple[int, float]] = []
    for key, bias in given.items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise RequestError(f"logit_bias: {key[:40]!r} is not a token id", param="logit_bias")
        pairs.append((int(key), bias))
    return tuple(pairs)


def _stops(given: str | list[str] | None) -> tuple[str, ...]:
    stops = (given,) if isinstance(given, str) else tuple(given or ())
    if len(stops) > MAX_STOPS:
        raise RequestError(f"stop: at most {MAX_STOPS} strings are taken, got {len(stops)}", param="stop")
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise RequestError(f"stop: each string needs 1 to {MAX_STOP_CHARS} characters", param="stop")
    return stops

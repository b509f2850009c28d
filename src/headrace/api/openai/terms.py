# SPDX-License-Identifier: Apache-2.0
"""On what terms a call is served, beside what is drawn: in whose name, how soon, sharing what with whom."""

from __future__ import annotations

import math
from dataclasses import dataclass

from starlette.datastructures import Headers

from headrace.api.http.origin import Origin
from headrace.api.openai.fields import AnswerFields
from headrace.core.errors import RequestError
from headrace.core.request import GenerateRequest, SamplingParams

SLO_HEADER = "x-slo-ttft-ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    origin: Origin
    priority: int
    ttft_slo_s: float | None
    cache_salt: str
    deterministic: bool

    def request(
        self, request_id: str, prompt_ids: tuple[int, ...], params: SamplingParams, n: int
    ) -> GenerateRequest:
        return GenerateRequest(
            request_id=request_id,
            prompt_ids=prompt_ids,
            params=params,
            n=n,
            arrival_s=self.origin.arrival_s,
            priority=self.priority,
            tenant=self.origin.tenant,
            ttft_slo_s=self.ttft_slo_s,
            cache_salt=self.cache_salt,
            deterministic=self.deterministic,
        )


def terms_of(fields: AnswerFields, headers: Headers, origin: Origin) -> Terms:
    """A target in the body outranks one in the header. Raises RequestError."""
    slo_ms = _slo_ms(headers.get(SLO_HEADER)) if fields.slo_ttft_ms is None else fields.slo_ttft_ms
    return Terms(
        origin=origin,
        priority=fields.priority or 0,
        ttft_slo_s=None if slo_ms is None else slo_ms / 1000,
        cache_salt=fields.cache_salt or "",
        deterministic=bool(fields.deterministic),
    )


def _slo_ms(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise RequestError(
            f"the header {SLO_HEADER} must be a positive number of milliseconds, got {text[:40]!r}",
            param=SLO_HEADER,
        )
    return value

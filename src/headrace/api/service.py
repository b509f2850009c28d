# SPDX-License-Identifier: Apache-2.0
"""What the routes of one application share."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.api.open_calls import OpenCalls
from headrace.api.readiness import Readiness


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    readiness: Readiness
    calls: OpenCalls = field(default_factory=OpenCalls)
    has_vllm_metrics: bool = False  # on the metrics page
    reports_metrics: bool = False  # vLLM's `metrics` in every answer

# SPDX-License-Identifier: Apache-2.0
"""The metrics page in Prometheus' text format. Making it takes no lock and waits for nobody."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headrace.observe.counts import AnswerCounts, StepCounts
from headrace.observe.engine_numbers import EngineNumbers, ServingFacts
from headrace.observe.own_names import own_families
from headrace.observe.vllm_names import vllm_families

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsPage(Collector):
    facts: ServingFacts
    engine: EngineNumbers
    steps: StepCounts
    answers: AnswerCounts
    has_vllm_names: bool  # beside our own

    def collect(self) -> Iterator[Metric]:
        yield from own_families(self.facts, self.engine, self.steps, self.answers)
        if self.has_vllm_names:
            yield from vllm_families(self.facts, self.engine, self.steps, self.answers)

    def text(self) -> bytes:
        return generate_latest(self)

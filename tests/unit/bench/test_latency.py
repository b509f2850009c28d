# SPDX-License-Identifier: Apache-2.0
"""Timing of single requests: what is counted, against a backend that takes a known time a step."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import pytest

from headrace.bench.host import this_host
from headrace.bench.latency import Latency, LatencyPlan, RequestTiming, measure_latency, time_request
from headrace.bench.latency_report import LatencyReport, report_lines
from headrace.bench.launch import measure_launch, time_launch
from headrace.bench.spread import spread_of
from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.events import Failed, Finished, Sink, TokenEvent
from headrace.core.plan import TokenResult
from headrace.core.request import GenerateRequest, SamplingParams
from headrace.engine.loop import Engine
from headrace.runner.backends.fake import FakeBackend

PARAMS = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
REQUEST = GenerateRequest(request_id="r", prompt_ids=(1, 2, 3), params=PARAMS)


def token_event(*tokens: int) -> TokenEvent:
    return TokenEvent("r", 0, tuple(TokenResult(token, 0.0, ()) for token in tokens))


def test_derived_times() -> None:
    timing = RequestTiming(num_prompt=10, arrivals_s=(0.5, 0.7, 0.8, 1.1))
    assert timing.ttft_s == 0.5
    assert timing.tpot_s == pytest.approx(0.2)
    assert timing.itl_s == pytest.approx((0.2, 0.1, 0.3))


def test_tokens_that_come_together_arrive_together() -> None:
    def submit(request: GenerateRequest, sink: Sink) -> None:
        sink(token_event(1))
        sink(token_event(2, 3))
        sink(Finished("r", 0, "length", 3, 3))

    timing = time_request(submit, REQUEST)
    assert timing.num_prompt == 3
    assert len(timing.arrivals_s) == 3
    assert timing.itl_s[1] == 0


def test_a_failure_is_told() -> None:
    def fail(request: GenerateRequest, sink: Sink) -> None:
        sink(Failed("r", "out of luck"))

    with pytest.raises(HeadraceError, match="out of luck"):
        time_request(fail, REQUEST)


def test_too_few_tokens_are_no_measurement() -> None:
    def stop_early(request: GenerateRequest, sink: Sink) -> None:
        sink(token_event(1))
        sink(Finished("r", 0, "stop", 3, 1))

    with pytest.raises(HeadraceError, match="1 tokens came where 3 were due"):
        time_request(stop_early, REQUEST)


@pytest.mark.parametrize("field", ["prompt_tokens", "output_tokens", "repetitions"])
def test_a_plan_names_the_bad_value(field: str) -> None:
    values = {"prompt_tokens": 4, "output_tokens": 4, "repetitions": 2, field: 0}
    with pytest.raises(ConfigError, match=field):
        LatencyPlan(**values)


def measure(backend: FakeBackend, plan: LatencyPlan) -> tuple[Latency, int]:
    engine = Engine(backend, EngineConfig())
    engine.start()
    heard: list[None] = []
    try:
        latency = measure_latency(engine.submit, plan, backend.info.vocab_size, lambda: heard.append(None))
    finally:
        engine.close()
    return latency, len(heard)


def test_latency_of_an_engine_with_a_known_step() -> None:
    """Sleeping never ends early: a step's 2 ms are the floor of every time and the ceiling of every rate."""
    step_s = 0.002
    plan = LatencyPlan(prompt_tokens=20, output_tokens=5, repetitions=3)
    backend = FakeBackend(step_s=step_s)
    latency, num_heard = measure(backend, plan)
    assert num_heard == plan.num_requests == 7
    assert backend.num_steps == 7 * 5  # the prompt's step gives the first token
    assert latency.ttft_s.low >= step_s
    assert latency.prompt_tokens_per_s.high <= 20 / step_s
    assert latency.itl_s.count == 3 * 4
    assert step_s * 0.5 <= latency.itl_s.p50 <= latency.itl_s.p99 <= latency.itl_s.high
    assert latency.decode_tokens_per_s.count == latency.decode_from_one_tokens_per_s.count == 3
    assert latency.decode_tokens_per_s.high <= 1.3 / step_s


def test_spread() -> None:
    spread = spread_of([3.0, 1.0, 2.0, 2.0])
    assert (spread.p50, spread.low, spread.high, spread.count) == (2.0, 1.0, 3.0, 4)
    assert spread.p99 == pytest.approx(2.97)


def test_launch_is_timed_to_the_first_byte() -> None:
    heard: list[None] = []
    late_end = [sys.executable, "-S", "-c", "import time; print('x', flush=True); time.sleep(1)"]
    spread = measure_launch(late_end, 1, lambda: heard.append(None))
    assert spread.high < 1
    assert spread.count == 1
    assert len(heard) == 2  # the first is not counted
    assert time_launch([sys.executable, "-S", "-c", "import time; time.sleep(0.3)"]) >= 0.3


def test_a_launch_that_fails_says_why() -> None:
    with pytest.raises(HeadraceError, match="status 3: no such model"):
        time_launch(
            [sys.executable, "-S", "-c", "import sys; print('no such model', file=sys.stderr); sys.exit(3)"]
        )


def test_report() -> None:
    latency, _ = measure(FakeBackend(), LatencyPlan(prompt_tokens=8, output_tokens=2, repetitions=1))
    report = LatencyReport(
        model="tiny",
        host=this_host(),
        num_threads=2,
        kernels="avx2",
        prompt_tokens=8,
        output_tokens=2,
        repetitions=1,
        latency=latency,
        overhead_share=0.015,
        launch_to_first_token_s=spread_of([0.5, 0.6, 0.7]),
        weight_bytes_per_token=98_300_000,
        read_bandwidth_bytes_per_s=24.6e9,
        mbu=0.42,
    )
    text = "\n".join(report_lines(report))
    for part in ("tiny", "avx2", "0.600", "98.3 MB", "24.6 GB/s", "0.42", "1.5 %", report.host.cpu):
        assert part in text
    assert json.loads(json.dumps(asdict(report)))["launch_to_first_token_s"]["p50"] == 0.6

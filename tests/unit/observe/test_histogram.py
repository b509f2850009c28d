# SPDX-License-Identifier: Apache-2.0
"""Histograms against counting by hand."""

from __future__ import annotations

import math
import random

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as PlainHistogram

from headrace.observe.histogram import (
    ITL_BOUNDS,
    LATENCY_BOUNDS,
    STEP_TOKEN_BOUNDS,
    TTFT_BOUNDS,
    Histogram,
    one_two_five,
)

BOUNDS = (0.1, 0.5, 1.0, 2.0)


def test_values_count_where_they_belong() -> None:
    histogram = Histogram(BOUNDS)
    rng = random.Random(1)
    values = [rng.uniform(0, 3) for _ in range(1000)] + [0.0, 0.1, 0.5, 1.0, 2.0, 9.0]
    for value in values:
        histogram.add(value)
    expected = [(bound, sum(value <= bound for value in values)) for bound in (*BOUNDS, math.inf)]
    assert histogram.cumulative() == expected
    assert histogram.count == len(values)
    assert histogram.total == pytest.approx(sum(values))


def test_as_the_prometheus_client_counts() -> None:
    registry = CollectorRegistry()
    plain = PlainHistogram("x", "x", buckets=TTFT_BOUNDS, registry=registry)
    ours = Histogram(TTFT_BOUNDS)
    rng = random.Random(2)
    for value in [*(10 ** rng.uniform(-4, 4) for _ in range(500)), *TTFT_BOUNDS]:
        plain.observe(value)
        ours.add(value)
    theirs = [s.value for s in next(iter(registry.collect())).samples if s.name == "x_bucket"]
    assert [count for _, count in ours.cumulative()] == theirs


def test_bounds_may_be_shown_up_to_a_value() -> None:
    histogram = Histogram(one_two_five(1000))
    for value in (1, 3, 60, 99):
        histogram.add(value)
    assert histogram.cumulative(100) == [
        (1, 1), (2, 1), (5, 2), (10, 2), (20, 2), (50, 2), (100, 4), (math.inf, 4)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("largest", "expected"), [(1, [1]), (4, [1, 2]), (100, [1, 2, 5, 10, 20, 50, 100]), (0.5, [])]
)
def test_one_two_five(largest: float, expected: list[int]) -> None:
    assert list(one_two_five(largest)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("bounds", [TTFT_BOUNDS, ITL_BOUNDS, LATENCY_BOUNDS, STEP_TOKEN_BOUNDS])
def test_bounds_rise(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))


def test_bounds_are_those_that_dashboards_know() -> None:
    ttft = ".001 .005 .01 .02 .04 .06 .08 .1 .25 .5 .75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
    itl = ".01 .025 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5 5 7.5 10 20 40 80"
    latency = ".3 .5 .8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
    step = "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384"
    for bounds, text in (
        (TTFT_BOUNDS, ttft),
        (ITL_BOUNDS, itl),
        (LATENCY_BOUNDS, latency),
        (STEP_TOKEN_BOUNDS, step),
    ):
        assert list(bounds) == [float(word) for word in text.split()]

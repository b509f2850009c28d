# SPDX-License-Identifier: Apache-2.0
"""When requests go out: so many at once, each with its place in time, or all together."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from headrace.bench.request_record import Call


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """The next one goes when one of `concurrency` is back."""

    concurrency: int

    def __str__(self) -> str:
        return f"{self.concurrency} at once"


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests go when they are due, whatever became of those before."""

    how: str  # for the report

    def __str__(self) -> str:
        return self.how


Pace = ClosedLoop | OpenLoop


def poisson_arrivals(rate: float, seed: int) -> Iterator[float]:
    """Times in seconds with exponential gaps, `rate` a second on average, the first at 0."""
    draw = random.Random(f"arrivals/{seed}")
    at_s = 0.0
    while True:
        yield at_s
        at_s += draw.expovariate(rate)


def arriving(calls: Sequence[Call], arrivals_s: Iterator[float]) -> list[Call]:
    return [replace(call, at_s=at_s) for call, at_s in zip(calls, arrivals_s, strict=False)]

# SPDX-License-Identifier: Apache-2.0
"""Counts by size, cheap enough for the step loop: one search among the bounds and two additions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def one_two_five(largest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, ... up to `largest`."""
    bounds: list[float] = []
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power > largest:
                return tuple(bounds)
            bounds.append(float(digit * power))
        power *= 10


# Those of vLLM, so that its dashboards fit; "seconds" where nothing is said.
TTFT_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY_BOUNDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TOKEN_BOUNDS = one_two_five(10**9)  # shown up to the longest sequence
STEP_TOKEN_BOUNDS = (1.0, *(float(2**k) for k in range(3, 15)))
N_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTION_BOUNDS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)


class Histogram:
    """One thread adds; any may read."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = list(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.total = 0.0  # of all values

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative(self, largest: float = float("inf")) -> list[tuple[float, int]]:
        """(bound, how many values are no larger), for bounds up to `largest`, then for infinity."""
        counts = list(self._counts)
        out: list[tuple[float, int]] = []
        so_far = 0
        for bound, count in zip(self._bounds, counts, strict=False):
            so_far += count
            if bound <= largest:
                out.append((bound, so_far))
        return [*out, (float("inf"), sum(counts))]

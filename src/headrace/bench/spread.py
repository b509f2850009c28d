# SPDX-License-Identifier: Apache-2.0
"""Several measurements of one thing, in the few numbers that get reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Spread:
    p50: float
    p90: float
    p99: float
    mean: float
    low: float
    high: float
    count: int


def spread_of(values: Sequence[float]) -> Spread:
    p50, p90, p99 = np.percentile(values, (50, 90, 99))
    mean = float(np.mean(values))
    return Spread(float(p50), float(p90), float(p99), mean, min(values), max(values), len(values))

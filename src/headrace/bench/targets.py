# SPDX-License-Identifier: Apache-2.0
"""Targets that a request can meet or miss, as `--slo ttft=500` writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.bench.request_record import RequestRecord
from headrace.core.errors import ConfigError

# What a target is of. `itl` is a request's longest gap. None: the request is too short to have one.
MEASURED: dict[str, Callable[[RequestRecord], float | None]] = {
    "ttft": lambda record: record.ttft_s,
    "tpot": lambda record: record.tpot_s,
    "itl": lambda record: max(record.itl_s, default=None),
    "e2e": lambda record: record.e2e_s,
}


@dataclass(frozen=True, slots=True)
class Target:
    of: str  # a key of MEASURED
    at_most_s: float

    def is_met(self, record: RequestRecord) -> bool:
        value = MEASURED[self.of](record)
        return value is None or value <= self.at_most_s


def parse_target(text: str) -> Target:
    """`ttft=500`: at most 500 ms. ConfigError for anything else."""
    name, _, value = text.partition("=")
    try:
        at_most_ms = float(value)
    except ValueError:
        at_most_ms = -1.0
    if name not in MEASURED or not 0 < at_most_ms < float("inf"):
        known = ", ".join(MEASURED)
        raise ConfigError(f"{text!r} is no target: one looks like ttft=500, in milliseconds, of {known}")
    return Target(name, at_most_ms / 1000)


def meets_all(record: RequestRecord, targets: Sequence[Target]) -> bool:
    return record.is_ok and all(target.is_met(record) for target in targets)

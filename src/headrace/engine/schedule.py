# SPDX-License-Identifier: Apache-2.0
"""What the planner decided for one step: the plan that a backend carries out, and why the others wait."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from headrace.core.plan import StepPlan


class Hold(Enum):
    """Why a sequence that was looked at gets nothing in a step."""

    BLOCKS = auto()  # too few KV blocks are free
    BUDGET = auto()  # the step is full
    PREFIX = auto()  # a running sequence is computing what it will reuse


@dataclass(frozen=True, slots=True)
class Schedule:
    step: StepPlan
    held: tuple[tuple[int, Hold], ...]  # sequence ids; whoever is neither here nor in a row waits for a place

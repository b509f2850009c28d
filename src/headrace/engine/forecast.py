# SPDX-License-Identifier: Apache-2.0
"""When somebody who comes now would see a first token, and when the queue has room, from the load at one
moment and what steps cost. It plays the coming seconds through by their events, not step by step, the way the
planner works: half of a step's prompt tokens for the first prompt, the rest for those that lack least."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from headrace.engine.rates import StepCost, StepShape

MAX_EVENTS = 400  # beyond them the rest is extrapolated: it is far off anyway


@dataclass(frozen=True, slots=True)
class Demand:
    """What a sequence still needs. One that waits needs a place first."""

    num_prompt: int  # prompt tokens to compute, without those that are cached
    num_output: float  # tokens expected
    num_context: int = 0  # tokens it has computed or found


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Who is there, in the policy's order."""

    running: Ordered[Demand]
    waiting: Ordered[Demand]
    max_num_seqs: int
    max_num_batched_tokens: int
    limit_s: float  # of a step while somebody is being answered
    idle_limit_s: float  # while nobody is


@dataclass(slots=True)
class _Row:
    prompt: float
    output: float
    context: float


def first_token_s(load: Load, cost: StepCost, mine: Demand) -> float:
    """Seconds until the first token of a request that comes behind all who wait; 0 while nothing is known."""
    if not cost.is_known:
        return 0.0
    return _Play(load, cost).until_first_token(mine)


def room_s(load: Load, cost: StepCost) -> float:
    """Seconds until one of those who wait has started; 0 while nothing is known or nobody waits."""
    if not cost.is_known or not load.waiting:
        return 0.0
    return _Play(load, cost).until_started(1)


class _Play:
    """The load as it goes on without newcomers, until what is asked for has happened."""

    def __init__(self, load: Load, cost: StepCost) -> None:
        self._load = load
        self._cost = cost
        self._rows = [
            _Row(float(demand.num_prompt), max(demand.num_output, 1.0), float(demand.num_context))
            for demand in load.running
        ]
        self._waiting = list(load.waiting)
        self._num_started = 0
        self._now_s = 0.0

    def until_first_token(self, mine: Demand) -> float:
        me = _row(mine)
        num_before = len(self._waiting)
        for _ in range(MAX_EVENTS):
            self._start_waiting()
            if self._num_started == num_before and me not in self._rows and self._has_place:
                self._rows.append(me)
            if me.prompt <= 0:
                return self._now_s
            self._advance()
        return self._now_s * max((num_before + 1) / max(self._num_started, 1), 1.0)

    def until_started(self, num_sequences: int) -> float:
        for _ in range(MAX_EVENTS):
            self._start_waiting()
            if self._num_started >= num_sequences:
                break
            self._advance()
        return self._now_s

    @property
    def _has_place(self) -> bool:
        return len(self._rows) < self._load.max_num_seqs

    def _start_waiting(self) -> None:
        while self._num_started < len(self._waiting) and self._has_place:
            self._rows.append(_row(self._waiting[self._num_started]))
            self._num_started += 1

    def _advance(self) -> None:
        """To the next moment at which a prompt or an answer ends."""
        reading = [row for row in self._rows if row.prompt > 0]
        answering = [row for row in self._rows if row.prompt <= 0]
        step_s, num_tokens = self._step(reading, answering)
        first = reading[0] if reading else None
        shortest = min(reading[1:], key=lambda row: row.prompt, default=None)
        speeds = [(first, num_tokens if shortest is None else num_tokens / 2), (shortest, num_tokens / 2)]
        num_steps = min(
            [
                *(row.prompt / speed for row, speed in speeds if row is not None),
                *(max(row.output, 0.0) for row in answering),
            ],
            default=1.0,
        )
        num_steps = max(num_steps, 1.0)  # nothing ends within a step
        for row, speed in speeds:
            if row is not None:
                row.prompt -= num_steps * speed
                row.context += num_steps * speed
        for row in answering:
            row.output -= num_steps
            row.context += num_steps
        self._now_s += num_steps * step_s
        self._rows = [row for row in self._rows if row.prompt > 1e-9 or row.output > 1e-9]

    def _step(self, reading: list[_Row], answering: list[_Row]) -> tuple[float, float]:
        """Seconds of a step now, and the prompt tokens that it computes."""
        context = sum(row.context for row in answering)
        if not reading:
            return self._cost.seconds(StepShape(0, len(answering), context)), 0.0
        limit_s = self._load.limit_s if answering else self._load.idle_limit_s
        fitting = self._cost.tokens_within(
            limit_s,
            num_decode_rows=len(answering),
            decode_context=int(context),
            prompt_context=int(reading[0].context),
        )
        num_tokens = min(
            float(fitting),
            float(self._load.max_num_batched_tokens - len(answering)),
            sum(row.prompt for row in reading),
        )
        num_tokens = max(num_tokens, 1.0)
        attended = context + num_tokens * reading[0].context + num_tokens**2 / 2
        return self._cost.seconds(StepShape(int(num_tokens), len(answering), attended)), num_tokens


def _row(demand: Demand) -> _Row:
    # A prompt that is all cached still takes one place to draw from.
    return _Row(max(float(demand.num_prompt), 1.0), max(demand.num_output, 1.0), float(demand.num_context))

# SPDX-License-Identifier: Apache-2.0
"""When somebody who comes now would see a first token, and when the queue has room, from the load at one
moment and what steps cost. It plays the coming seconds through by their events, not step by step, the way the
planner works: half of a step's prompt tokens for the first prompt, the rest for those that lack least."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from headrace.engine.rates import StepCost

# Played through one by one; what lies behind them is taken to go on at their pace, in proportion to its work.
# So a forecast takes half a millisecond for a hundred that wait, and not much more for thousands.
MAX_EVENTS = 64
MAX_LAST_EVENTS = 64  # the newcomer's own, after what was reckoned in proportion


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


def first_token_s(load: Load, cost: StepCost, mine: Demand) -> float:
    """Seconds until the first token of a request that comes behind all who wait; 0 while nothing is known."""
    if not cost.is_known:
        return 0.0
    return _Play(load, cost).until_first_token(mine)


def ended_s(load: Load, cost: StepCost, num_to_end: int) -> float:
    """Seconds until so many have ended; 0 while nothing is known or nobody is there."""
    if not cost.is_known or not (load.running or load.waiting):
        return 0.0
    return _Play(load, cost).until_ended(num_to_end)


def started_s(load: Load, cost: StepCost, num_to_start: int) -> float:
    """Seconds until so many of those who wait have started; 0 while nothing is known or nobody waits."""
    if not cost.is_known or not load.waiting:
        return 0.0
    return _Play(load, cost).until_started(min(num_to_start, len(load.waiting)))


class _Reading:
    """A sequence whose prompt is not computed yet."""

    __slots__ = ("context", "output", "prompt")

    def __init__(self, demand: Demand) -> None:
        # A prompt that is all cached still takes one place to draw from.
        self.prompt = max(float(demand.num_prompt), 1.0)
        self.output = max(demand.num_output, 1.0)
        self.context = float(demand.num_context)


class _Play:
    """The load as it goes on without newcomers, until what is asked for has happened."""

    def __init__(self, load: Load, cost: StepCost) -> None:
        self._load = load
        self._rates = cost.rates
        self._now_s = 0.0
        self._num_steps = 0.0  # gone by
        self._reading: list[_Reading] = []
        self._answers: list[tuple[float, float]] = []  # heap of: the step each ends with, its context then
        self._context = 0.0  # of all answers
        self._num_started = 0  # of those who wait
        for demand in load.running:
            if demand.num_prompt > 0:
                self._reading.append(_Reading(demand))
            else:
                self._answer(max(demand.num_output, 1.0), float(demand.num_context))
        if self._num_running:
            # Half of the step under way is still to go.
            self._now_s = self._step(self._num_prompt_tokens()) / 2

    def until_first_token(self, mine: Demand) -> float:
        me = _Reading(mine)
        num_before = len(self._load.waiting)
        self._play(num_before)
        if self._num_started < num_before:
            self._skip_to(num_before)
        while not self._has_place:
            self._advance()
        self._reading.append(me)
        for _ in range(MAX_LAST_EVENTS):
            self._advance()
            if me.prompt <= 0:
                return self._now_s
        num_tokens = self._num_prompt_tokens()
        return self._now_s + self._step(num_tokens) * self._num_unread / num_tokens

    def until_ended(self, num_to_end: int) -> float:
        num_before, num_ended = self._num_running, 0
        for _ in range(MAX_EVENTS):
            self._start(len(self._load.waiting))
            num_ended = num_before + self._num_started - self._num_running
            if num_ended >= num_to_end or not self._num_running:
                return self._now_s
            self._advance()
        return self._now_s * num_to_end / max(num_ended, 1)

    def until_started(self, num_to_start: int) -> float:
        """Who has a place starts with the next step."""
        self._play(num_to_start)
        if self._num_started < num_to_start:
            self._skip_to(num_to_start)
        return self._now_s + self._step(self._num_prompt_tokens())

    def _play(self, num_to_start: int) -> None:
        """Until so many of those who wait have started, or MAX_EVENTS have passed."""
        for _ in range(MAX_EVENTS):
            self._start(num_to_start)
            if self._num_started == num_to_start:
                break
            self._advance()

    def _start(self, num_to_start: int) -> None:
        """As many of them as have a place."""
        while self._num_started < num_to_start and self._has_place:
            self._reading.append(_Reading(self._load.waiting[self._num_started]))
            self._num_started += 1

    def _skip_to(self, num_to_start: int) -> None:
        """As if all up to there had started: work is done as fast as it was so far."""
        waiting, load = self._load.waiting, self._load
        ahead = self._work(load.running) + self._work(waiting[: self._num_started])
        left = sum(row.prompt for row in self._reading) * self._rates.prompt_s
        left += sum(end - self._num_steps for end, _ in self._answers) * self._answer_token_s
        done = max(ahead - left, ahead / 100)  # answers that are longer than expected could make it negative
        if done > 0:
            self._now_s *= 1.0 + self._work(waiting[self._num_started : num_to_start]) / done
        self._num_started = num_to_start

    def _work(self, demands: Iterable[Demand]) -> float:
        """Seconds of the machine, about."""
        prompt_s, output_s = self._rates.prompt_s, self._answer_token_s
        return sum(demand.num_prompt * prompt_s + demand.num_output * output_s for demand in demands)

    @property
    def _answer_token_s(self) -> float:
        return self._rates.decode_s + self._rates.fixed_s / self._load.max_num_seqs

    @property
    def _num_running(self) -> int:
        return len(self._reading) + len(self._answers)

    @property
    def _has_place(self) -> bool:
        return self._num_running < self._load.max_num_seqs

    def _answer(self, num_output: float, context: float) -> None:
        heapq.heappush(self._answers, (self._num_steps + num_output, context + num_output))
        self._context += context

    def _advance(self) -> None:
        """To the next moment at which a prompt or an answer ends, at least a step on."""
        num_tokens = self._num_prompt_tokens()
        step_s = self._step(num_tokens)
        num_steps = self._answers[0][0] - self._num_steps if self._answers else float("inf")
        if self._reading:
            num_steps = self._read(num_tokens, max(num_steps, 1.0))
        num_steps = max(num_steps, 1.0)
        self._now_s += num_steps * step_s
        self._num_steps += num_steps
        self._context += num_steps * len(self._answers)
        while self._answers and self._answers[0][0] <= self._num_steps + 1e-9:
            self._context -= heapq.heappop(self._answers)[1]
        if self._reading:
            self._end_prompts()

    def _read(self, num_tokens: float, max_steps: float) -> float:
        """The prompts move on until one of them ends; returns by how many steps."""
        first, *others = self._reading
        if not others:
            num_steps = max(min(first.prompt / num_tokens, max_steps), 1.0)
            _read_on(first, num_steps * num_tokens)
            return num_steps
        half = num_tokens / 2
        shortest = min(others, key=_prompt_of)
        num_steps = min(first.prompt / half, shortest.prompt / half, max_steps)
        if num_steps >= 1.0:
            _read_on(first, num_steps * half)
            _read_on(shortest, num_steps * half)
            return num_steps
        left = num_tokens - _read_on(first, half)
        for row in (*sorted(others, key=_prompt_of), first):
            left -= _read_on(row, left)
        return 1.0

    def _end_prompts(self) -> None:
        """Those computed have their first token."""
        for row in [row for row in self._reading if row.prompt <= 1e-9]:
            row.prompt = 0.0
            self._reading.remove(row)
            if row.output > 1:
                self._answer(row.output - 1, row.context + 1)

    def _num_prompt_tokens(self) -> float:
        """How many the next step computes."""
        if not self._reading:
            return 0.0
        num_answers, load = len(self._answers), self._load
        limit_s = load.limit_s if num_answers else load.idle_limit_s
        fitting = self._rates.tokens_within(limit_s, num_answers, self._context, self._reading[0].context)
        return max(min(fitting, load.max_num_batched_tokens - num_answers, self._num_unread), 1.0)

    @property
    def _num_unread(self) -> float:
        return sum(row.prompt for row in self._reading)

    def _step(self, num_tokens: float) -> float:
        """Seconds of a step now, with so many prompt tokens."""
        attended = self._context
        if num_tokens:
            attended += num_tokens * (self._reading[0].context + num_tokens / 2)
        return self._rates.seconds(num_tokens, len(self._answers), attended)


def _prompt_of(row: _Reading) -> float:
    return row.prompt


def _read_on(row: _Reading, num_tokens: float) -> float:
    """By as many of so many tokens as it lacks; returns how many."""
    num_tokens = min(num_tokens, row.prompt)
    row.prompt -= num_tokens
    row.context += num_tokens
    return num_tokens

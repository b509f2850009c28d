# SPDX-License-Identifier: Apache-2.0
"""Refuses what would wait too long: more than the queue may hold, or past its own target. "Not now" is
said at once, with the time after which it would be otherwise."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from headrace.core.config import EngineConfig
from headrace.core.errors import Overloaded
from headrace.core.events import FirstToken
from headrace.engine.forecast import Demand, Load, ended_s, first_token_s, started_s
from headrace.engine.planner import IDLE_STEP_FACTOR
from headrace.engine.rates import Lateness, OutputLengths, StepCost
from headrace.engine.scheduler import Scheduler
from headrace.engine.sequence import Sequence

# A forecast of when there is room serves everybody who asks within this time: in a storm of requests saying
# no must cost nothing.
ROOM_FORECAST_S = 0.1


@dataclass(frozen=True, slots=True)
class _Lack:
    """What must become free in the queue."""

    num_places: int = 0
    num_tokens: int = 0


class Gate:
    """Called on any thread under the engine's lock, but for `check_targets`, which only looks."""

    def __init__(
        self, config: EngineConfig, scheduler: Scheduler, cost: StepCost, lengths: OutputLengths
    ) -> None:
        self._config = config
        self._scheduler = scheduler
        self._cost = cost
        self._lengths = lengths
        self._entering: list[Sequence] = []
        self._num_entering_tokens = 0
        self._num_refused_queue_full = self._num_refused_slo = 0
        self._lateness = Lateness()
        self._room_s: dict[_Lack, float] = {}
        self._room_until_s = -math.inf  # those forecasts hold

    @property
    def num_entering(self) -> int:
        """Sequences let in that the scheduler does not have yet."""
        return len(self._entering)

    @property
    def num_entering_tokens(self) -> int:
        return self._num_entering_tokens

    @property
    def num_refused_queue_full(self) -> int:
        """Calls refused because the queue was full."""
        return self._num_refused_queue_full

    @property
    def num_refused_slo(self) -> int:
        """Calls refused because their target was out of reach."""
        return self._num_refused_slo

    def check_room(self, num_sequences: int, num_tokens: int = 0) -> None:
        """Raise Overloaded when so many sequences, with so many prompt tokens, would overfill the queue. What
        is more than the queue holds by itself is let in when nobody is there."""
        limit, token_limit = self._config.max_num_queued_reqs, self._config.max_num_queued_tokens
        if limit is None and token_limit is None:
            return
        num_waiting = self._scheduler.num_waiting + self.num_entering
        num_running = self._scheduler.num_running
        if num_waiting + num_running == 0:
            return
        num_places = max(self._config.max_num_seqs - num_running, 0)
        if limit is not None and (lacking := num_waiting + num_sequences - num_places - limit) > 0:
            why = f"{num_waiting} requests wait already, and at most {limit} may"
            self._refuse_full(why, _Lack(num_places=lacking))
        num_queued = self._scheduler.num_queued_tokens + self._num_entering_tokens
        if token_limit is None or num_waiting < num_places:
            return
        if (lacking := num_queued + num_tokens - token_limit) > 0:
            why = f"{num_queued} prompt tokens wait already, and at most {token_limit} may"
            self._refuse_full(why, _Lack(num_tokens=lacking))

    def enter(self, sequences: Ordered[Sequence]) -> None:
        """Let them in, or raise as `check_room` does."""
        num_tokens = sum(sequence.num_prompt for sequence in sequences)
        self.check_room(len(sequences), num_tokens)
        self._entering = [*self._entering, *sequences]
        self._num_entering_tokens += num_tokens

    def clear_entering(self) -> None:
        """The scheduler has all that were let in."""
        self._entering = []
        self._num_entering_tokens = 0

    def check_targets(self, sequences: Iterable[Sequence], now_s: float) -> None:
        """Raise Overloaded when the first token of one of them is foreseen after its deadline."""
        for sequence in sequences:
            if sequence.deadline_s is None:
                continue
            predicted_s = first_token_s(self._load(sequence), self._cost, self._demand(sequence))
            passed_s = now_s - sequence.arrival_s
            sequence.foreseen_s = passed_s + predicted_s
            at_worst_s = predicted_s * self._lateness.factor
            late_s = now_s + at_worst_s - sequence.deadline_s
            if late_s > 0:
                self._num_refused_slo += 1
                self._refuse_late(sequence, passed_s + at_worst_s, late_s)

    def learn(self, event: FirstToken) -> None:
        """A first token came. On the engine's thread."""
        if event.foreseen_s is not None:
            self._lateness.learn(event.foreseen_s, event.wait.total_s)

    def _refuse_full(self, why: str, lack: _Lack) -> None:
        self._num_refused_queue_full += 1
        now_s = time.monotonic()
        if now_s >= self._room_until_s:
            self._room_s.clear()
            self._room_until_s = now_s + ROOM_FORECAST_S
        if lack not in self._room_s:
            self._room_s[lack] = self._until_free_s(lack)
        room_s = self._room_s[lack]
        raise Overloaded(
            f"The server is busy: {why}. Try again in {room_s:.1f} s", code="queue_full", retry_after_s=room_s
        )

    def _until_free_s(self, lack: _Lack) -> float:
        if lack.num_places:
            return ended_s(self._load(None), self._cost, lack.num_places)
        num_tokens = num_sequences = 0
        for sequence in sorted(self._scheduler.waiting + self._entering, key=self._scheduler.rank):
            num_sequences += 1
            num_tokens += sequence.num_prompt
            if num_tokens >= lack.num_tokens:
                break
        return started_s(self._load(None), self._cost, num_sequences)

    def _refuse_late(self, sequence: Sequence, predicted_s: float, late_s: float) -> None:
        assert sequence.deadline_s is not None
        target_s = sequence.deadline_s - sequence.arrival_s
        alone_s = first_token_s(self._empty_load(), self._cost, self._demand(sequence))
        if alone_s > target_s:
            raise Overloaded(
                f"The first token would take {alone_s * 1000:.0f} ms even on an idle server, and "
                f"{target_s * 1000:.0f} ms were asked for: shorten the prompt or allow more",
                code="slo_unreachable",
                retry_after_s=late_s,
                predicted_ttft_s=predicted_s,
                param="slo_ttft_ms",
            )
        raise Overloaded(
            f"The first token is expected within {predicted_s * 1000:.0f} ms, and {target_s * 1000:.0f} ms "
            f"were asked for. Try again in {late_s:.1f} s",
            code="slo_unreachable",
            retry_after_s=late_s,
            predicted_ttft_s=predicted_s,
            param="slo_ttft_ms",
        )

    def _load(self, newcomer: Sequence | None) -> Load:
        """As it is now; behind it comes `newcomer`, before whom stands who goes first by the policy."""
        scheduler = self._scheduler
        waiting = scheduler.waiting + self._entering
        if newcomer is not None:
            mine = scheduler.rank(newcomer)
            waiting = [sequence for sequence in waiting if scheduler.rank(sequence) < mine]
        waiting.sort(key=scheduler.rank)
        running = sorted(scheduler.running, key=scheduler.rank)
        return self._load_of([self._demand(s) for s in running], [self._demand(s) for s in waiting])

    def _empty_load(self) -> Load:
        return self._load_of([], [])

    def _load_of(self, running: list[Demand], waiting: list[Demand]) -> Load:
        limit_s = self._config.max_itl_ms / 1000
        return Load(
            running=running,
            waiting=waiting,
            max_num_seqs=self._config.max_num_seqs,
            max_num_batched_tokens=self._config.max_num_batched_tokens,
            limit_s=limit_s,
            idle_limit_s=limit_s * IDLE_STEP_FACTOR,
        )

    def _demand(self, sequence: Sequence) -> Demand:
        num_hit = sequence.num_computed or self._scheduler.num_findable(sequence)
        expected = min(float(sequence.max_output), self._lengths.mean)
        return Demand(
            num_prompt=max(sequence.num_known - num_hit, 0) if sequence.num_output == 0 else 0,
            num_output=max(expected - sequence.num_output, 1.0),
            num_context=num_hit,
        )

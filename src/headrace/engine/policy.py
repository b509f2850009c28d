# SPDX-License-Identifier: Apache-2.0
"""Who goes first: among those who wait for a place, among prompts that share a step, and, from the other end,
among those who give up their blocks when there are too few. A policy looks at counts and times, never at
blocks. The scheduler calls it on one thread."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Ordered
from typing import Generic, Protocol, TypeVar

from headrace.core.config import EngineConfig

Rank = tuple[float, ...]

# By when somebody without a deadline is served beside those who have one: late enough to let them go first,
# and a bound on how long they can.
PATIENCE_S = 10.0
# What a token costs its tenant, as in Sheng et al. 2024, "Fairness in Serving Large Language Models".
PROMPT_TOKEN_COST = 1.0
OUTPUT_TOKEN_COST = 2.0
MAX_TENANTS = 1024  # whose counters are kept; of more, those who have nothing to lose are forgotten


class Ranked(Protocol):
    """What a policy may look at of a sequence."""

    @property
    def sequence_id(self) -> int: ...  # also the order of arrival
    @property
    def arrival_s(self) -> float: ...
    @property
    def priority(self) -> int: ...
    @property
    def tenant(self) -> str: ...
    @property
    def deadline_s(self) -> float | None: ...
    @property
    def num_prompt(self) -> int: ...


S = TypeVar("S", bound=Ranked)


class Policy(Protocol[S]):
    """Keeps those who wait. All of `rank`, `waiting` and `may_displace` look and change nothing."""

    def rank(self, sequence: S) -> Rank:
        """Smaller goes first. No two sequences have the same."""
        ...

    def waiting(self) -> Iterator[S]:
        """Those who wait, in the order in which they should start. Lazy: it costs what is taken."""
        ...

    def add(self, sequence: S) -> None:
        """It waits, for the first time or again."""
        ...

    def remove(self, sequence: S) -> None:
        """It waits no more."""
        ...

    def may_displace(self, waiting: S, running: S) -> bool:
        """Whether the one may take the other's place."""
        ...

    def charge(self, tenant: str, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """So much was computed for the tenant."""
        ...


class _SortedQueue(Generic[S]):
    """In order of ranks that do not change while a sequence waits. Insertion moves pointers, so that ten
    thousand cost microseconds."""

    def __init__(self) -> None:
        self._ranks: list[Rank] = []
        self._by_rank: dict[Rank, S] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[S]:
        return (self._by_rank[rank] for rank in self._ranks)

    def add(self, rank: Rank, sequence: S) -> None:
        insort(self._ranks, rank)
        self._by_rank[rank] = sequence

    def remove(self, rank: Rank) -> None:
        del self._by_rank[rank]
        del self._ranks[bisect_left(self._ranks, rank)]


class FirstComeFirstServed(Generic[S]):
    """In order of arrival."""

    def __init__(self) -> None:
        self._queue: _SortedQueue[S] = _SortedQueue()

    def rank(self, sequence: S) -> Rank:
        return (sequence.sequence_id,)

    def waiting(self) -> Iterator[S]:
        return iter(self._queue)

    def add(self, sequence: S) -> None:
        self._queue.add(self.rank(sequence), sequence)

    def remove(self, sequence: S) -> None:
        self._queue.remove(self.rank(sequence))

    def may_displace(self, waiting: S, running: S) -> bool:
        return False

    def charge(self, tenant: str, num_prompt_tokens: int, num_output_tokens: int) -> None:
        pass


class Priority(FirstComeFirstServed[S]):
    """Lower values first, as vLLM has it; of equals the one who came first. A running sequence makes place
    for one of a better class when there is no other."""

    def rank(self, sequence: S) -> Rank:
        return (sequence.priority, sequence.sequence_id)

    def may_displace(self, waiting: S, running: S) -> bool:
        return waiting.priority < running.priority


class Deadline(FirstComeFirstServed[S]):
    """The earliest deadline first. Who has none is due PATIENCE_S after arrival."""

    def rank(self, sequence: S) -> Rank:
        due_s = sequence.arrival_s + PATIENCE_S if sequence.deadline_s is None else sequence.deadline_s
        return (due_s, sequence.sequence_id)


class Fair(Generic[S]):
    """The tenant that has been served least for its weight; of its sequences the one that came first. Virtual
    token counters (Sheng et al. 2024): each tenant's counter grows by the cost of its tokens over its weight.
    A tenant that was away is lifted to the least of those who are there, so that nobody saves up."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = dict(weights)
        self._counters: dict[str, float] = {}
        self._queues: dict[str, _SortedQueue[S]] = {}  # none is empty
        # Of each tenant that waits: counter, id of the sequence whose turn it is, tenant. Sorted, because
        # clients may make up tenants by the thousand.
        self._turns: list[tuple[float, int, str]] = []
        self._turn_of: dict[str, tuple[float, int, str]] = {}
        self._last = ""  # the tenant that waited last
        self._max_counters = MAX_TENANTS

    def rank(self, sequence: S) -> Rank:
        return (self._counters.get(sequence.tenant, 0.0), sequence.sequence_id)

    def waiting(self) -> Iterator[S]:
        """Each taken counts as served its prompt for whoever is taken next."""
        begun: list[tuple[float, int, S, Iterator[S]]] = []  # a heap of tenants somebody was taken from
        place = 0  # of the first tenant nobody was taken from
        while begun or place < len(self._turns):
            if place < len(self._turns) and (not begun or self._turns[place][:2] < begun[0][:2]):
                counter, _, tenant = self._turns[place]
                place += 1
                queue = iter(self._queues[tenant])
                sequence = next(queue)
            else:
                counter, _, sequence, queue = heapq.heappop(begun)
            yield sequence
            following = next(queue, None)
            if following is not None:
                counter += sequence.num_prompt * PROMPT_TOKEN_COST / self._weight(sequence.tenant)
                heapq.heappush(begun, (counter, following.sequence_id, following, queue))

    def add(self, sequence: S) -> None:
        tenant = sequence.tenant
        if tenant not in self._queues:
            self._counters[tenant] = max(self._counters.get(tenant, 0.0), self._floor())
            self._queues[tenant] = _SortedQueue()
        self._queues[tenant].add((sequence.sequence_id,), sequence)
        self._set_turn(tenant)

    def remove(self, sequence: S) -> None:
        tenant = sequence.tenant
        self._queues[tenant].remove((sequence.sequence_id,))
        if not self._queues[tenant]:
            del self._queues[tenant]
            self._last = tenant
        self._set_turn(tenant)
        if len(self._counters) > self._max_counters:
            self._forget_idle()

    def may_displace(self, waiting: S, running: S) -> bool:
        return False

    def charge(self, tenant: str, num_prompt_tokens: int, num_output_tokens: int) -> None:
        cost = num_prompt_tokens * PROMPT_TOKEN_COST + num_output_tokens * OUTPUT_TOKEN_COST
        self._counters[tenant] = self._counters.get(tenant, 0.0) + cost / self._weight(tenant)
        if tenant in self._queues:
            self._set_turn(tenant)

    def _set_turn(self, tenant: str) -> None:
        """Its counter or its queue has changed."""
        before = self._turn_of.pop(tenant, None)
        if before is not None:
            del self._turns[bisect_left(self._turns, before)]
        if tenant in self._queues:
            first = next(iter(self._queues[tenant]))
            turn = (self._counters[tenant], first.sequence_id, tenant)
            insort(self._turns, turn)
            self._turn_of[tenant] = turn

    def _forget_idle(self) -> None:
        """Who is away and has been served no more than those who are there would be lifted to them anyway.
        Not again before as many more have come: looking through them all costs what they are."""
        floor = self._floor()
        self._counters = {
            tenant: counter
            for tenant, counter in self._counters.items()
            if tenant in self._queues or tenant == self._last or counter > floor
        }
        self._max_counters = max(MAX_TENANTS, 2 * len(self._counters))

    def _floor(self) -> float:
        """The least counter of those who wait; of nobody, what the last one has come to."""
        return self._turns[0][0] if self._turns else self._counters.get(self._last, 0.0)

    def _weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)


def policy_of(config: EngineConfig) -> Policy[S]:
    match config.scheduling_policy:
        case "priority":
            return Priority()
        case "fair":
            return Fair(dict(config.tenant_weights))
        case "deadline":
            return Deadline()
        case _:
            return FirstComeFirstServed()


def share_prompt_tokens(remaining: Ordered[int], budget: int) -> list[int]:
    """How many of a step's `budget` prompt tokens each prompt gets; `remaining` are what they lack, in the
    policy's order. The first gets half and never less, so that it ends; the other half goes to those that
    lack least, so that a short prompt has its first token within a few steps behind a long one."""
    shares = [0] * len(remaining)
    left = budget
    if not remaining or budget <= 0:
        return shares
    shares[0] = min(remaining[0], -(-budget // 2))
    left -= shares[0]
    shortest_first = sorted(range(1, len(remaining)), key=lambda place: (remaining[place], place))
    for place in (*shortest_first, 0):
        more = min(remaining[place] - shares[place], left)
        shares[place] += more
        left -= more
    return shares

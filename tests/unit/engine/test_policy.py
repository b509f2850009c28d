# SPDX-License-Identifier: Apache-2.0
"""Who goes first under each policy, and how prompts share a step."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.engine.policy import (
    MAX_TENANTS,
    PATIENCE_S,
    Deadline,
    Fair,
    FirstComeFirstServed,
    Policy,
    Priority,
    policy_of,
    share_prompt_tokens,
)


@dataclass(frozen=True)
class Item:
    sequence_id: int
    arrival_s: float = 0.0
    priority: int = 0
    tenant: str = ""
    deadline_s: float | None = None
    num_prompt: int = 10


def order(policy: Policy[Item], items: Iterable[Item]) -> list[int]:
    for item in items:
        policy.add(item)
    return [item.sequence_id for item in policy.waiting()]


def test_first_come_first_served() -> None:
    assert order(FirstComeFirstServed(), [Item(3), Item(1, priority=9), Item(2)]) == [1, 2, 3]


def test_priority_is_lower_first_and_then_arrival() -> None:
    items = [Item(1), Item(2, priority=-1), Item(3, priority=5), Item(4, priority=-1)]
    policy: Priority[Item] = Priority()
    assert order(policy, items) == [2, 4, 1, 3]
    assert policy.may_displace(items[1], items[0])
    assert not policy.may_displace(items[3], items[1])
    assert not policy.may_displace(items[0], items[1])


def test_the_earliest_deadline_and_patience_without_one() -> None:
    items = [
        Item(1, arrival_s=0.0),
        Item(2, deadline_s=PATIENCE_S - 1),
        Item(3, deadline_s=2.0),
        Item(4, deadline_s=PATIENCE_S + 1),
    ]
    assert order(Deadline(), items) == [3, 2, 1, 4]


@pytest.mark.parametrize("policy", [FirstComeFirstServed(), Priority(), Deadline(), Fair({})])
def test_who_left_is_not_there_and_who_came_back_is(policy: Policy[Item]) -> None:
    items = [Item(i, tenant="ab"[i % 2], priority=i % 3) for i in range(9)]
    before = order(policy, items)
    for item in items[:4]:
        policy.remove(item)
    assert [item.sequence_id for item in policy.waiting()] == [i for i in before if i >= 4]
    for item in items[:4]:
        policy.add(item)
    assert sorted(item.sequence_id for item in policy.waiting()) == list(range(9))
    assert list(policy.waiting()) == list(policy.waiting()), "looking changes nothing"
    assert len({policy.rank(item) for item in items}) == 9


def serve(policy: Fair[Item], arrivals: list[Item], num_turns: int) -> Counter[str]:
    """One at a time, each for its prompt and ten output tokens."""
    for item in arrivals:
        policy.add(item)
    served: Counter[str] = Counter()
    for _ in range(num_turns):
        item = next(policy.waiting())
        policy.remove(item)
        policy.charge(item.tenant, item.num_prompt, 10)
        served[item.tenant] += item.num_prompt + 20
    return served


def test_a_tenant_with_many_requests_gets_no_more_than_one_with_few() -> None:
    many = [Item(i, tenant="many") for i in range(300)]
    few = [Item(1000 + i, tenant="few") for i in range(30)]
    served = serve(Fair({}), [*many, *few], 60)
    assert served["few"] == served["many"]


def test_long_requests_count_for_what_they_cost() -> None:
    long = [Item(2 * i, tenant="long", num_prompt=280) for i in range(100)]
    short = [Item(2 * i + 1, tenant="short", num_prompt=10) for i in range(1000)]
    served = serve(Fair({}), [*long, *short], 110)
    assert served["long"] == pytest.approx(served["short"], rel=0.15)


def test_weights_share_out_the_machine() -> None:
    items = [Item(i, tenant="abb"[i % 3]) for i in range(900)]
    served = serve(Fair({"a": 3.0}), items, 200)
    assert served["a"] == pytest.approx(3 * served["b"], rel=0.1)


def test_who_was_away_has_saved_nothing_up() -> None:
    policy: Fair[Item] = Fair({})
    serve(policy, [Item(i, tenant="here") for i in range(200)], 100)
    served = serve(policy, [Item(1000 + i, tenant="back") for i in range(100)], 40)
    assert served["back"] == served["here"]


def test_several_places_at_once_are_shared_too() -> None:
    policy: Fair[Item] = Fair({})
    for i in range(20):
        policy.add(Item(i, tenant="many"))
    for i in range(20, 24):
        policy.add(Item(i, tenant="few"))
    assert [item.tenant for item in islice(policy.waiting(), 8)] == ["many", "few"] * 4


def test_made_up_tenants_do_not_fill_the_memory() -> None:
    policy: Fair[Item] = Fair({})
    for i in range(5 * MAX_TENANTS):
        item = Item(i, tenant=str(i))
        policy.add(item)
        policy.remove(item)
        policy.charge(item.tenant, 1, 0)
    assert len(policy._counters) <= 2 * MAX_TENANTS


TENANTS = st.sampled_from("abcd")
TURNS = st.lists(st.tuples(st.sampled_from(["add", "remove", "charge"]), TENANTS, st.integers(0, 40)))


@given(TURNS)
def test_the_order_is_what_serving_one_after_the_other_gives(turns: list[tuple[str, str, int]]) -> None:
    policy: Fair[Item] = Fair({"a": 2.0})
    there: list[Item] = []
    for number, (action, tenant, amount) in enumerate(turns):
        if action == "add":
            there.append(Item(number, tenant=tenant, num_prompt=amount))
            policy.add(there[-1])
        elif action == "remove" and there:
            policy.remove(there.pop(amount % len(there)))
        elif action == "charge":
            policy.charge(tenant, amount, 3)
    counters = {item.tenant: policy.rank(item)[0] for item in there}
    left, expected = list(there), []
    while left:
        following = min(left, key=lambda item: (counters[item.tenant], item.sequence_id))
        counters[following.tenant] += following.num_prompt / (2.0 if following.tenant == "a" else 1.0)
        left.remove(following)
        expected.append(following)
    assert list(policy.waiting()) == expected


def test_policies_by_name() -> None:
    kinds = {"fcfs": FirstComeFirstServed, "priority": Priority, "fair": Fair, "deadline": Deadline}
    for name, kind in kinds.items():
        assert type(policy_of(EngineConfig(scheduling_policy=name))) is kind  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="scheduling_policy must be one of fcfs, priority, fair, deadline"):
        EngineConfig(scheduling_policy="lifo")  # type: ignore[arg-type]


# ---- sharing a step ----


@given(st.lists(st.integers(1, 500), max_size=12), st.integers(0, 600))
def test_nothing_is_left_over_while_somebody_wants_it(remaining: list[int], budget: int) -> None:
    shares = share_prompt_tokens(remaining, budget)
    assert all(0 <= share <= most for share, most in zip(shares, remaining, strict=True))
    assert sum(shares) == min(budget, sum(remaining))
    if remaining:
        assert shares[0] >= min(remaining[0], budget // 2)


def test_short_prompts_pass_a_long_one_and_the_long_one_goes_on() -> None:
    assert share_prompt_tokens([6000, 60, 40], 64) == [32, 0, 32]
    assert share_prompt_tokens([6000, 60, 8], 64) == [32, 24, 8]
    assert share_prompt_tokens([6000], 64) == [64]
    assert share_prompt_tokens([10, 6000], 64) == [10, 54]


def test_a_long_prompt_ends_while_short_ones_keep_coming() -> None:
    """And each of those within a few steps."""
    draw = random.Random(3)
    long, num_steps, waits, short = 6000, 0, [], [[50, 0]]
    while long:
        shares = share_prompt_tokens([long, *(left for left, _ in short)], 64)
        long -= shares[0]
        short = [[left - share, age + 1] for (left, age), share in zip(short, shares[1:], strict=True)]
        waits += [age for left, age in short if left == 0]
        short = [entry for entry in short if entry[0]]
        if draw.random() < 0.4:
            short.append([50, 0])
        num_steps += 1
    assert num_steps <= 6000 / 32
    assert sorted(waits)[len(waits) * 9 // 10] <= 8

# SPDX-License-Identifier: Apache-2.0
"""Pool, lease and draft against a model of them that is two Python sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kv.block_pool import BlockPool
from headrace.kv.draft import BlockDraft
from headrace.kv.invariants import check_idle, check_pool
from headrace.kv.lease import BlockLease
from headrace.kv.prefix_index import PrefixIndex

NUM_BLOCKS = 12


def lease_of(pool: BlockPool) -> BlockLease:
    return BlockLease(pool, PrefixIndex(pool))


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["grow", "release"]), st.integers(0, 3), st.integers(0, 6)), max_size=60
)


@given(ACTIONS)
def test_leases_share_out_the_pool(actions: list[tuple[str, int, int]]) -> None:
    pool = BlockPool(NUM_BLOCKS, block_size=4)
    leases = [lease_of(pool) for _ in range(4)]
    held: list[list[int]] = [[] for _ in leases]
    for action, which, count in actions:
        if action == "release":
            leases[which].release()
            held[which] = []
        else:
            free = NUM_BLOCKS - sum(map(len, held))
            block_ids = BlockDraft(pool).take(count)
            assert (block_ids is None) == (count > free)
            if block_ids is not None:
                assert not set(block_ids) & {block_id for ids in held for block_id in ids}
                leases[which].reserve(block_ids)
                held[which] += block_ids
        assert [list(lease.block_ids) for lease in leases] == held
        check_pool(pool, leases)
    for lease in leases:
        lease.release()
        lease.release()
    check_idle(pool)


@given(st.lists(st.integers(0, 5), max_size=6), st.lists(st.integers(0, 5), max_size=6))
def test_a_draft_changes_nothing_and_can_be_carried_out(before: list[int], after: list[int]) -> None:
    """Taking what a draft promised works in the order: returned blocks are given back first."""
    pool = BlockPool(NUM_BLOCKS, block_size=4)
    victim, taker = lease_of(pool), lease_of(pool)
    victim.reserve(BlockDraft(pool).take(5) or ())
    free = list(pool.free_ids())
    draft = BlockDraft(pool)
    promised = [draft.take(count) for count in before]
    draft.give(victim.block_ids)
    promised += [draft.take(count) for count in after]
    assert list(pool.free_ids()) == free
    assert pool.num_free == len(free)
    taken = [block_id for ids in promised if ids is not None for block_id in ids]
    assert len(taken) == len(set(taken))
    assert draft.num_left == NUM_BLOCKS - len(taken)
    victim.release()
    taker.reserve(tuple(taken))
    check_pool(pool, [victim, taker])


def test_the_block_given_back_last_is_taken_first() -> None:
    pool = BlockPool(4, block_size=1)
    lease = lease_of(pool)
    lease.reserve((0, 1, 2))
    lease.release()
    assert BlockDraft(pool).take(2) == (0, 1)  # a lease gives its first block back last


@pytest.mark.parametrize(("places", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_blocks_for(places: int, blocks: int) -> None:
    assert BlockPool(4, block_size=16).blocks_for(places) == blocks


def test_a_block_is_leased_once() -> None:
    pool = BlockPool(4, block_size=1)
    lease_of(pool).reserve((2,))
    with pytest.raises(AssertionError, match="block 2 is taken"):
        lease_of(pool).reserve((1, 2))


def test_the_sums_notice_a_lost_lease() -> None:
    pool = BlockPool(4, block_size=1)
    lease = lease_of(pool)
    lease.reserve((2,))
    with pytest.raises(AssertionError, match="block 2 counts 1 leases, 0 hold it"):
        check_pool(pool, [])
    with pytest.raises(AssertionError, match="1 of 4 blocks"):
        check_idle(pool)
    pool.give_back((2,))
    with pytest.raises(AssertionError, match="block 2 counts 0 leases, 1 hold it"):
        check_pool(pool, [lease])
    with pytest.raises(AssertionError, match="block 2 is free"):
        lease.release()

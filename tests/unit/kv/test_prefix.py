# SPDX-License-Identifier: Apache-2.0
"""Finding blocks by what they hold: only what is equal from the first token on, in the same namespace; leaves
are evicted first; nothing is found that somebody else has taken."""

from __future__ import annotations

import itertools

import pytest

from headrace.kv.block_pool import BlockPool
from headrace.kv.draft import BlockDraft
from headrace.kv.invariants import check_index, check_pool
from headrace.kv.lease import BlockLease
from headrace.kv.prefix_index import PartialMatch, PrefixIndex
from headrace.kv.prefix_keys import block_key, extend_keys, root_key

SIZE = 4
ROOT = root_key(model="m")


class Cache:
    """A pool with an index, and sequences that fill blocks."""

    def __init__(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks, SIZE)
        self.index = PrefixIndex(self.pool)
        self.leases: list[BlockLease] = []

    def filled(self, tokens: tuple[int, ...], root: bytes = ROOT) -> BlockLease:
        """A lease whose blocks hold these tokens, all known to the index."""
        lease = BlockLease(self.pool, self.index)
        keys = keys_of(tokens, root)
        found = self.index.find(keys, len(keys))
        lease.share(tuple(found))
        lease.reserve(BlockDraft(self.pool).take(self.pool.blocks_for(len(tokens)) - len(found)) or ())
        for place in range(len(found), len(keys)):
            parent = keys[place - 1] if place else root
            self.index.put(lease.block_ids[place], parent, tokens[place * SIZE :][:SIZE], keys[place])
        rest = tokens[len(keys) * SIZE :]
        if rest:
            self.index.put(lease.block_ids[len(keys)], keys[-1] if keys else root, rest, None)
        self.leases.append(lease)
        self.check()
        return lease

    def check(self) -> None:
        check_pool(self.pool, self.leases)
        check_index(self.pool, self.index)


def keys_of(tokens: tuple[int, ...], root: bytes = ROOT) -> list[bytes]:
    keys: list[bytes] = []
    extend_keys(keys, root, tokens, SIZE, len(tokens))
    return keys


def test_keys_grow_with_the_sequence_as_at_once() -> None:
    tokens = tuple(range(30))
    keys: list[bytes] = []
    for end in range(31):
        extend_keys(keys, ROOT, tokens, SIZE, end)
        assert len(keys) == end // SIZE
    assert keys == keys_of(tokens)
    assert keys[1] == block_key(block_key(ROOT, (0, 1, 2, 3)), (4, 5, 6, 7))


def test_no_two_namespaces_read_alike() -> None:
    parts = ["", "a", "b", "ab", "a\0", "\ud800"]
    roots = [
        root_key(model=model, adapter=adapter, media=media, salt=salt)
        for model, adapter, media, salt in itertools.product(parts, repeat=4)
    ]
    assert len(set(roots)) == len(parts) ** 4


def test_tokens_of_any_size_are_told_apart() -> None:
    """(1, 2) in one block is not (258,), and one token more or less is another key."""
    blocks = [(1, 2), (258,), (2, 1), (1,), (1, 2, 0), (-1,), (2**31 - 1,)]
    assert len({block_key(ROOT, block) for block in blocks}) == len(blocks)


def test_finds_what_begins_alike_and_nothing_else() -> None:
    cache = Cache(16)
    lease = cache.filled(tuple(range(10)))
    find = cache.index.find
    assert find(keys_of(tuple(range(12))), 9) == list(lease.block_ids[:2])
    assert find(keys_of(tuple(range(12))), 1) == list(lease.block_ids[:1])
    assert find(keys_of((*range(4), 9, 5, 6, 7)), 9) == list(lease.block_ids[:1])
    assert find(keys_of((9, *range(1, 8))), 9) == []
    assert find(keys_of(tuple(range(8)), root_key(model="m", salt="other")), 9) == []
    assert find(keys_of(tuple(range(8)), root_key(model="other")), 9) == []


def test_finds_the_longest_beginning_of_a_block() -> None:
    cache = Cache(16)
    first = cache.filled((1, 2, 3, 4))
    second = cache.filled((1, 2, 9))
    find = cache.index.find_partial
    assert find(ROOT, (1, 2, 3)) == PartialMatch(first.block_ids[0], 3)
    assert find(ROOT, (1, 2, 9, 9)) == PartialMatch(second.block_ids[0], 3)
    assert find(ROOT, (1, 5)) in (PartialMatch(first.block_ids[0], 1), PartialMatch(second.block_ids[0], 1))
    assert find(ROOT, (2,)) is None
    assert find(ROOT, ()) is None
    assert find(keys_of((1, 2, 3, 4))[0], (1, 2)) is None


def test_of_two_equal_blocks_one_is_kept() -> None:
    cache = Cache(16)
    tokens = (1, 2, 3, 4)
    first = cache.filled(tokens)
    twin = BlockLease(cache.pool, cache.index)
    twin.reserve((9,))
    cache.leases.append(twin)
    cache.index.put(9, ROOT, (1, 2), None)
    assert cache.index.put(9, ROOT, tokens, keys_of(tokens)[0]) == first.block_ids[0]
    twin.swap(0, first.block_ids[0])
    cache.check()
    assert cache.pool.count(first.block_ids[0]) == 2
    assert not cache.pool.is_kept(9)


def test_the_longest_unused_leaf_goes_first() -> None:
    cache = Cache(6)
    old = cache.filled(tuple(range(12)))  # 3 blocks
    new = cache.filled(tuple(range(50, 62)))  # 3 blocks
    old_ids, new_ids = old.block_ids, new.block_ids
    old.release()
    new.release()
    cache.check()
    assert list(cache.pool.free_ids()) == [*reversed(old_ids), *reversed(new_ids)]
    again = cache.filled(tuple(range(8)))  # uses two of the old ones
    again.release()
    cache.check()
    assert list(cache.pool.free_ids()) == [old_ids[2], *reversed(new_ids), old_ids[1], old_ids[0]]


def test_what_is_evicted_is_not_found() -> None:
    cache = Cache(3)
    tokens = tuple(range(12))
    cache.filled(tokens).release()
    taker = BlockLease(cache.pool, cache.index)
    cache.leases.append(taker)
    taker.reserve(BlockDraft(cache.pool).take(2) or ())
    cache.check()
    assert cache.index.num_evicted == 2
    assert len(cache.index.find(keys_of(tokens), 9)) == 1


def test_what_is_held_is_never_taken() -> None:
    cache = Cache(3)
    cache.filled(tuple(range(8)))
    assert BlockDraft(cache.pool).take(2) is None


def test_a_draft_does_not_take_what_it_counts_on() -> None:
    cache = Cache(4)
    lease = cache.filled(tuple(range(12)))
    ids = lease.block_ids
    lease.release()
    draft = BlockDraft(cache.pool)
    assert draft.num_to_claim(ids[:2]) == 2
    draft.claim(ids[:2])
    draft.claim(ids[:1])
    assert draft.num_left == 2
    assert draft.take(3) is None
    taken = draft.take(2)
    assert taken is not None
    assert not set(taken) & set(ids[:2])
    assert draft.is_taken(ids[2])


def test_a_draft_gets_back_only_what_nobody_else_holds() -> None:
    cache = Cache(4)
    one = cache.filled(tuple(range(8)))
    two = cache.filled((*range(4), 7, 7, 7, 7))
    draft = BlockDraft(cache.pool)
    draft.give(one.block_ids)
    assert draft.num_left == 2  # one free, and one's last
    draft.give(two.block_ids)
    assert draft.num_left == 4


def test_clearing_leaves_blocks_with_their_holders() -> None:
    cache = Cache(4)
    cache.filled(tuple(range(8)))
    cache.filled((9, 9, 9)).release()
    cache.index.clear()
    cache.check()
    assert cache.pool.num_kept == 0
    assert cache.index.find(keys_of(tuple(range(8))), 9) == []
    assert cache.pool.num_free == 2


def test_the_sums_notice_a_parent_that_would_go_first() -> None:
    cache = Cache(4)
    lease = cache.filled(tuple(range(8)))
    ids = lease.block_ids
    lease.release()
    cache.check()
    cache.pool.share(ids[1:])
    cache.pool.give_back(ids[1:])  # the child alone was used
    with pytest.raises(AssertionError, match="would be evicted before"):
        check_index(cache.pool, cache.index)

# SPDX-License-Identifier: Apache-2.0
"""The sums that must hold between two steps. Tests call `check_pool` and `check_index` after every step; the
engine calls `check_idle` when it runs out of work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from headrace.kv.block_pool import BlockPool
from headrace.kv.lease import BlockLease
from headrace.kv.prefix_index import PrefixIndex
from headrace.kv.prefix_keys import block_key


def check_pool(pool: BlockPool, leases: Iterable[BlockLease]) -> None:
    """Every block is free or leased, never both, and counted as often as it is held.

    `leases` are all that exist. Raises AssertionError naming the block."""
    held: Counter[int] = Counter()
    for lease in leases:
        own = Counter(lease.block_ids)
        for block_id, times in own.items():
            _hold(times == 1, f"block {block_id} is {times} times in one lease")
        held.update(own)
    free = list(pool.free_ids())
    _hold(len(free) == len(set(free)) == pool.num_free, "a block is twice in the free lists")
    for block_id in range(pool.num_blocks):
        count = pool.count(block_id)
        _hold(count == held[block_id], f"block {block_id} counts {count} leases, {held[block_id]} hold it")
    _hold(all(pool.count(block_id) == 0 for block_id in free), "a held block is in the free lists")
    _hold(
        len(free) + len(held) == pool.num_blocks,
        f"{len(free)} free and {len(held)} leased blocks do not make {pool.num_blocks}",
    )


def check_index(pool: BlockPool, index: PrefixIndex) -> None:
    """The index knows the kept blocks and no others, each by its own key, and a block is taken from the
    cache after those that follow it. Raises AssertionError naming the block."""
    entries = index.entries()
    kept = {block_id for block_id in range(pool.num_blocks) if pool.is_kept(block_id)}
    _hold(kept == set(entries), f"blocks {kept ^ set(entries)} are kept or known, but not both")
    by_key = {key: block_id for block_id, (key, _, _) in entries.items() if key is not None}
    turn = {block_id: place for place, block_id in enumerate(pool.free_ids())}
    for block_id, (key, parent, tokens) in entries.items():
        if key is not None:
            _hold(len(tokens) == pool.block_size, f"block {block_id} has a key and is not full")
            _hold(key == block_key(parent, tokens), f"block {block_id} is known by a wrong key")
            _hold(index.find([key], 1) == [block_id], f"block {block_id} is not found by its key")
        before = by_key.get(parent)
        if before is not None and before in turn:
            goes_first = block_id in turn and turn[block_id] < turn[before]
            _hold(goes_first, f"block {before} would be evicted before block {block_id}, which follows it")


def check_idle(pool: BlockPool) -> None:
    """With no sequence left, no block is held."""
    _hold(
        pool.num_free == pool.num_blocks,
        f"{pool.num_blocks - pool.num_free} of {pool.num_blocks} blocks are held by nobody",
    )


def _hold(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)

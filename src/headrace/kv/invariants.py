# SPDX-License-Identifier: Apache-2.0
"""The sums that must hold between two steps. Tests call `check_pool` after every step; the engine calls
`check_idle` when it runs out of work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from headrace.kv.block_pool import BlockPool
from headrace.kv.lease import BlockLease


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
    _hold(len(free) == len(set(free)) == pool.num_free, "a block is twice in the free list")
    for block_id in range(pool.num_blocks):
        count = pool.count(block_id)
        _hold(count == held[block_id], f"block {block_id} counts {count} leases, {held[block_id]} hold it")
    _hold(all(pool.count(block_id) == 0 for block_id in free), "a held block is in the free list")
    _hold(
        len(free) + len(held) == pool.num_blocks,
        f"{len(free)} free and {len(held)} leased blocks do not make {pool.num_blocks}",
    )


def check_idle(pool: BlockPool) -> None:
    """With no sequence left, no block is held."""
    _hold(
        pool.num_free == pool.num_blocks,
        f"{pool.num_blocks - pool.num_free} of {pool.num_blocks} blocks are held by nobody",
    )


def _hold(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)

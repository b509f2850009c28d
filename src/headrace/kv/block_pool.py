# SPDX-License-Identifier: Apache-2.0
"""The pool of KV blocks: the only writer of the free lists and of the reference counts. It deals in
block ids; the bytes behind them belong to the runner, what they hold is the prefix index's business, and
who holds a block is a lease's."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain


class BlockPool:
    """Blocks 0 .. num_blocks-1. Each is held by as many leases as its count says, or free. A free block
    may be kept: its contents can be found again until somebody takes it.

    Blocks without contents are taken first, the one given back last before the others: its bytes are the
    likeliest to be in a CPU cache still, and blocks that were never used stay untouched memory. Then kept
    ones, the one not used for longest first. A lease gives its blocks back from the last to the first, and
    whoever shares a block shares all blocks before it, so that no block is taken before those that follow
    it: leaves go first. Ordered dicts take a block out of the middle in constant time.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs blocks and places, got {num_blocks} blocks of {block_size}")
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._counts = [0] * num_blocks
        self._empty: OrderedDict[int, None] = OrderedDict.fromkeys(reversed(range(num_blocks)))
        self._idle: OrderedDict[int, None] = OrderedDict()  # kept and not held, longest unused first
        self._kept: set[int] = set()

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._empty) + len(self._idle)

    @property
    def num_kept(self) -> int:
        """Blocks whose contents can be found, held or not."""
        return len(self._kept)

    def blocks_for(self, num_places: int) -> int:
        """How many blocks hold `num_places` tokens."""
        return -(-num_places // self._block_size)

    def free_ids(self) -> Iterator[int]:
        """The free blocks in the order in which they would be taken."""
        return chain(reversed(self._empty), self._idle)

    def count(self, block_id: int) -> int:
        """How many leases hold the block; 0 means free."""
        return self._counts[block_id]

    def is_kept(self, block_id: int) -> bool:
        return block_id in self._kept

    def acquire(self, block_ids: Iterable[int]) -> list[int]:
        """Take these free blocks for new contents. Returns those that were kept: what they held is gone.
        For BlockLease only."""
        evicted = []
        for block_id in block_ids:
            if self._counts[block_id] != 0:
                raise AssertionError(f"block {block_id} is taken already")
            self._counts[block_id] = 1
            if block_id in self._kept:
                self._kept.remove(block_id)
                del self._idle[block_id]
                evicted.append(block_id)
            else:
                del self._empty[block_id]
        return evicted

    def share(self, block_ids: Iterable[int]) -> None:
        """One more hold on each of these kept blocks. For BlockLease only."""
        for block_id in block_ids:
            if block_id not in self._kept:
                raise AssertionError(f"block {block_id} has no contents to share")
            if self._counts[block_id] == 0:
                del self._idle[block_id]
            self._counts[block_id] += 1

    def give_back(self, block_ids: Iterable[int]) -> None:
        """Drop one hold on each of these blocks; those without a holder are free. For BlockLease only."""
        for block_id in block_ids:
            if self._counts[block_id] < 1:
                raise AssertionError(f"block {block_id} is free already")
            self._counts[block_id] -= 1
            if self._counts[block_id] == 0:
                (self._idle if block_id in self._kept else self._empty)[block_id] = None

    def keep(self, block_id: int) -> None:
        """The held block's contents can be found from now on. For PrefixIndex only."""
        if self._counts[block_id] < 1:
            raise AssertionError(f"block {block_id} is not held, so nobody knows what is in it")
        self._kept.add(block_id)

    def unkeep(self, block_id: int) -> None:
        """The block's contents cannot be found any more. For PrefixIndex only."""
        self._kept.remove(block_id)
        if self._counts[block_id] == 0:
            del self._idle[block_id]
            self._empty[block_id] = None

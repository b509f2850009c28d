# SPDX-License-Identifier: Apache-2.0
"""The pool of KV blocks: the only writer of the free list and of the reference counts. It deals in
block ids; the bytes behind them belong to the runner, and who holds a block is a lease's business."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator


class BlockPool:
    """Blocks 0 .. num_blocks-1, each free (count 0) or held by as many leases as its count says.

    The block given back last is taken first: its bytes are the likeliest to be in a CPU cache still,
    and blocks that were never used stay untouched memory. An ordered dict takes a block out of the
    middle of the free list in constant time, which a plan that mixes free and preempted blocks needs.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs blocks and places, got {num_blocks} blocks of {block_size}")
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._counts = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(reversed(range(num_blocks)))

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def num_free(self) -> int:
        return len(self._free)

    def blocks_for(self, num_places: int) -> int:
        """How many blocks hold `num_places` tokens."""
        return -(-num_places // self._block_size)

    def free_ids(self) -> Iterator[int]:
        """The free blocks in the order in which they would be taken."""
        return reversed(self._free)

    def count(self, block_id: int) -> int:
        """How many leases hold the block; 0 means free."""
        return self._counts[block_id]

    def acquire(self, block_ids: Iterable[int]) -> None:
        """Take these blocks off the free list. For BlockLease only."""
        for block_id in block_ids:
            if self._counts[block_id] != 0:
                raise AssertionError(f"block {block_id} is taken already")
            self._counts[block_id] = 1
            del self._free[block_id]

    def give_back(self, block_ids: Iterable[int]) -> None:
        """Drop one hold on each of these blocks; those without a holder are free. For BlockLease only."""
        for block_id in block_ids:
            if self._counts[block_id] < 1:
                raise AssertionError(f"block {block_id} is free already")
            self._counts[block_id] -= 1
            if self._counts[block_id] == 0:
                self._free[block_id] = None

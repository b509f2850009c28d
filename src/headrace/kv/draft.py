# SPDX-License-Identifier: Apache-2.0
"""What a plan would take from the pool if it were carried out. Reads the pool and changes nothing in it,
so that planning can look, change its mind and be thrown away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from headrace.kv.block_pool import BlockPool


class BlockDraft:
    """Lives for one `plan()`; the pool must not change meanwhile."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._free = pool.free_ids()
        self._num_free = pool.num_free  # not taken or claimed by this draft
        self._claimed: set[int] = set()  # free in the pool, and not to be taken
        self._taken: set[int] = set()
        self._returned: list[int] = []
        self._given: Counter[int] = Counter()  # holds that carrying out the plan drops

    @property
    def num_left(self) -> int:
        return self._num_free + len(self._returned)

    def num_to_claim(self, block_ids: Iterable[int]) -> int:
        """How many of these kept blocks would be fewer for others to take."""
        return sum(self._pool.count(block_id) == 0 for block_id in set(block_ids) - self._claimed)

    def is_taken(self, block_id: int) -> bool:
        """Whether the plan gives the block to somebody for new contents."""
        return block_id in self._taken

    def claim(self, block_ids: Iterable[int]) -> None:
        """Kept blocks whose contents the plan counts on."""
        for block_id in block_ids:
            if self._pool.count(block_id) == 0 and block_id not in self._claimed:
                self._claimed.add(block_id)
                self._num_free -= 1

    def take(self, num_blocks: int) -> tuple[int, ...] | None:
        """The next `num_blocks` ids, or None, taking nothing, when fewer are left."""
        if num_blocks > self.num_left:
            return None
        taken: list[int] = []
        while len(taken) < num_blocks and self._num_free:
            block_id = next(self._free)
            if block_id not in self._claimed:
                taken.append(block_id)
                self._num_free -= 1
        while len(taken) < num_blocks:
            taken.append(self._returned.pop())
        self._taken.update(taken)
        return tuple(taken)

    def give(self, block_ids: Iterable[int]) -> None:
        """Count on blocks that carrying out the plan will free first (a preempted sequence's), as far as
        nobody else holds them."""
        for block_id in block_ids:
            self._given[block_id] += 1
            if self._given[block_id] == self._pool.count(block_id):
                self._returned.append(block_id)

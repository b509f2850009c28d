# SPDX-License-Identifier: Apache-2.0
"""What a plan would take from the pool if it were carried out. Reads the pool and changes nothing in it,
so that planning can look, change its mind and be thrown away."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from headrace.kv.block_pool import BlockPool


class BlockDraft:
    """Lives for one `plan()`; the pool must not change meanwhile."""

    def __init__(self, pool: BlockPool) -> None:
        self._free = pool.free_ids()
        self._num_free = pool.num_free
        self._returned: list[int] = []

    @property
    def num_left(self) -> int:
        return self._num_free + len(self._returned)

    def take(self, num_blocks: int) -> tuple[int, ...] | None:
        """The next `num_blocks` ids, or None, taking nothing, when fewer are left."""
        if num_blocks > self.num_left:
            return None
        taken = tuple(islice(self._free, min(num_blocks, self._num_free)))
        self._num_free -= len(taken)
        num_missing = num_blocks - len(taken)
        if num_missing:
            taken += tuple(self._returned[-num_missing:])
            del self._returned[-num_missing:]
        return taken

    def give(self, block_ids: Iterable[int]) -> None:
        """Count on blocks that carrying out the plan will free first (a preempted sequence's)."""
        self._returned.extend(block_ids)

# SPDX-License-Identifier: Apache-2.0
"""A sequence's hold on blocks. It begins by `share`, grows by `reserve` and ends by `release`, which may be
called twice."""

from __future__ import annotations

from headrace.kv.block_pool import BlockPool
from headrace.kv.prefix_index import PrefixIndex


class BlockLease:
    """The blocks of one sequence in the order of its tokens: place p lies in `block_ids[p // block_size]`."""

    def __init__(self, pool: BlockPool, index: PrefixIndex) -> None:
        self._pool = pool
        self._index = index
        self._block_ids: tuple[int, ...] = ()

    @property
    def block_ids(self) -> tuple[int, ...]:
        return self._block_ids

    def share(self, block_ids: tuple[int, ...]) -> None:
        """Begin with blocks that hold the sequence's first tokens already."""
        assert not self._block_ids, "what is shared is shared from the first block on"
        self._pool.share(block_ids)
        self._block_ids = block_ids

    def reserve(self, block_ids: tuple[int, ...]) -> None:
        """Add free blocks at the end."""
        self._index.drop_evicted(self._pool.acquire(block_ids))
        self._block_ids += block_ids

    def swap(self, place: int, block_id: int) -> None:
        """Hold this kept block, which has the same contents, in place of the one there."""
        own = self._block_ids[place]
        self._pool.share((block_id,))
        self._block_ids = (*self._block_ids[:place], block_id, *self._block_ids[place + 1 :])
        self._pool.give_back((own,))

    def release(self) -> None:
        """Give every block back, the last one first. The lease is empty afterwards and may grow again."""
        block_ids, self._block_ids = self._block_ids, ()
        self._pool.give_back(reversed(block_ids))

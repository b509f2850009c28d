# SPDX-License-Identifier: Apache-2.0
"""A sequence's hold on blocks. It grows by `reserve` and ends by `release`, which may be called twice."""

from __future__ import annotations

from headrace.kv.block_pool import BlockPool


class BlockLease:
    """The blocks of one sequence in the order of its tokens: place p lies in `block_ids[p // block_size]`."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._block_ids: tuple[int, ...] = ()

    @property
    def block_ids(self) -> tuple[int, ...]:
        return self._block_ids

    def reserve(self, block_ids: tuple[int, ...]) -> None:
        """Add free blocks at the end."""
        self._pool.acquire(block_ids)
        self._block_ids += block_ids

    def release(self) -> None:
        """Give every block back. The lease is empty afterwards and may grow again."""
        block_ids, self._block_ids = self._block_ids, ()
        self._pool.give_back(block_ids)

# SPDX-License-Identifier: Apache-2.0
"""The blocks of sequences as they move on: what they hold is written to the prefix index once it is there,
and what they are about to compute is known while it is not."""

from __future__ import annotations

from headrace.engine.pending import PendingBlocks
from headrace.engine.sequence import Sequence
from headrace.kv.block_pool import BlockPool
from headrace.kv.lease import BlockLease
from headrace.kv.prefix_index import PrefixIndex
from headrace.kv.prefix_keys import extend_keys


class SequenceBlocks:
    """The scheduler's, and like it on one thread."""

    def __init__(self, num_blocks: int, block_size: int, *, reuses_prefixes: bool) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.index = PrefixIndex(self.pool)
        self.pending = PendingBlocks(block_size)
        self.has_swapped = False  # a sequence holds another block than before; whoever asks sets it back
        self._reuses = reuses_prefixes

    @property
    def index_in_use(self) -> PrefixIndex | None:
        return self.index if self._reuses else None

    def new_lease(self) -> BlockLease:
        return BlockLease(self.pool, self.index)

    def start(self, sequence: Sequence, num_hit: int, block_ids: tuple[int, ...]) -> None:
        """It begins with `num_hit` tokens that are there: in the first of `block_ids` what is found, in the
        next the copy of a part, if it ends within a block."""
        sequence.lease.share(block_ids[: num_hit // self.pool.block_size])
        sequence.num_computed = sequence.num_settled = num_hit
        if self._reuses:
            self.pending.add(sequence)

    def grow(self, sequence: Sequence, block_ids: tuple[int, ...]) -> None:
        """It holds the first of `block_ids`, and the others from now on."""
        more = block_ids[len(sequence.lease.block_ids) :]
        if more:
            sequence.lease.reserve(more)

    def settle(self, sequence: Sequence, num_settled: int) -> None:
        """K/V of its tokens up to `num_settled` are there now."""
        size, before = self.pool.block_size, sequence.num_settled
        if self._reuses:
            self.pending.remove(sequence, num_settled)
        sequence.num_settled = num_settled
        if not self._reuses:
            return
        if num_settled // size > before // size:
            extend_keys(sequence.keys, sequence.root_key, sequence.tokens, size, num_settled)
            for place in range(before // size, num_settled // size):
                self._put_full(sequence, place)
        if before < sequence.num_prompt <= num_settled:
            self._put_rest(sequence, num_settled)

    def leave(self, sequence: Sequence) -> None:
        """It gives its blocks back; what is in them can be found until others take them."""
        if self._reuses:
            self.pending.remove_all(sequence)
            if sequence.num_settled == sequence.num_computed:
                self._put_rest(sequence, sequence.num_settled)
        sequence.lease.release()
        sequence.num_computed = sequence.num_settled = 0

    def _put_full(self, sequence: Sequence, place: int) -> None:
        size = self.pool.block_size
        parent = self._parent(sequence, place)
        if parent is None:
            return
        own = sequence.lease.block_ids[place]
        tokens = tuple(sequence.tokens[place * size : (place + 1) * size])
        known = self.index.put(own, parent, tokens, sequence.keys[place])
        if known != own:
            sequence.lease.swap(place, known)
            self.has_swapped = True

    def _put_rest(self, sequence: Sequence, end: int) -> None:
        """What is in the block that `end` tokens leave part full."""
        size = self.pool.block_size
        place, num_tokens = divmod(end, size)
        if num_tokens == 0 or place >= len(sequence.lease.block_ids):
            return
        parent = self._parent(sequence, place)
        if parent is not None:
            tokens = tuple(sequence.tokens[place * size : end])
            self.index.put(sequence.lease.block_ids[place], parent, tokens, None)

    def _parent(self, sequence: Sequence, place: int) -> bytes | None:
        """The key before the sequence's block at `place`. None when the block before it cannot be found (the
        cache was reset meanwhile): then nothing after it should be."""
        if place == 0:
            return sequence.root_key
        key = sequence.keys[place - 1]
        return key if self.index.knows(sequence.lease.block_ids[place - 1], key) else None

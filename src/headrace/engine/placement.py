# SPDX-License-Identifier: Apache-2.0
"""What of a waiting sequence's tokens is in the cache, and whether there are blocks for the rest. Looks and
changes nothing but the draft."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.plan import BlockCopy
from headrace.engine.sequence import Sequence
from headrace.kv.draft import BlockDraft
from headrace.kv.prefix_index import PartialMatch, PrefixIndex


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a sequence would start."""

    block_ids: tuple[int, ...]  # whole blocks found
    partial: PartialMatch | None  # and the beginning of one more, to be copied
    num_hit: int  # tokens that need no computing
    num_needed: int  # further blocks for all tokens it knows and the next one

    def copy_to(self, target: int) -> BlockCopy:
        assert self.partial is not None
        return BlockCopy(self.partial.block_id, target)


def find_placement(
    sequence: Sequence, index: PrefixIndex | None, draft: BlockDraft, block_size: int, num_places: int
) -> Placement:
    """`num_places` are what the sequence should have room for when it starts. No index: nothing is found."""
    num_blocks = -(-num_places // block_size)
    if index is None:
        return Placement((), None, 0, num_blocks)
    limit = sequence.num_reusable
    found = []
    for block_id in index.find(sequence.keys, limit // block_size):
        if draft.is_taken(block_id):
            break
        found.append(block_id)
    begin = len(found) * block_size
    partial = None
    if begin < limit:
        parent = sequence.keys[len(found) - 1] if found else sequence.root_key
        partial = index.find_partial(parent, sequence.tokens[begin : min(begin + block_size, limit)])
        if partial is not None and draft.is_taken(partial.block_id):
            partial = None
    return Placement(
        block_ids=tuple(found),
        partial=partial,
        num_hit=begin + (partial.num_tokens if partial else 0),
        num_needed=num_blocks - len(found),
    )


def fitted(placement: Placement, draft: BlockDraft, num_free: int, block_size: int) -> Placement | None:
    """The placement when `num_free` blocks hold what it needs, without the copy if only that is too much;
    None when they do not. What it counts on is claimed in the draft."""
    if placement.partial is not None:
        used = (*placement.block_ids, placement.partial.block_id)
        if placement.num_needed + draft.num_to_claim(used) <= num_free:
            draft.claim(used)
            return placement
        num_hit = len(placement.block_ids) * block_size
        placement = Placement(placement.block_ids, None, num_hit, placement.num_needed)
    if placement.num_needed + draft.num_to_claim(placement.block_ids) > num_free:
        return None
    draft.claim(placement.block_ids)
    return placement

# SPDX-License-Identifier: Apache-2.0
"""Blocks that running sequences are about to compute. Whoever waits for a place and needs the same contents
waits for them instead of computing them again."""

from __future__ import annotations

from headrace.engine.sequence import Sequence


def next_key(sequence: Sequence, num_found: int) -> bytes | None:
    """The key of what a sequence needs after its first `num_found` blocks; None: no more of its prompt."""
    return sequence.keys[num_found] if num_found < len(sequence.keys) else sequence.tail_key


def wanted_keys(sequence: Sequence, num_found: int) -> list[bytes]:
    """The keys of all that it needs after them."""
    tail = [] if sequence.tail_key is None else [sequence.tail_key]
    return sequence.keys[num_found:] + tail


class PendingBlocks:
    """Prompt blocks by key, each with the running sequence that computes it."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._owners: dict[bytes, Sequence] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def owner(self, key: bytes) -> Sequence | None:
        """Who computes it; None: nobody."""
        return self._owners.get(key)

    def add(self, sequence: Sequence) -> None:
        """It starts: its known blocks from num_computed on are on their way, if they are not already."""
        for key in self._keys(sequence):
            self._owners.setdefault(key, sequence)

    def remove(self, sequence: Sequence, num_settled: int) -> None:
        """Its blocks up to `num_settled` are there. Called before that is written to the sequence."""
        self._remove(sequence, self._keys(sequence, num_settled))

    def remove_all(self, sequence: Sequence) -> None:
        """It leaves, done or not."""
        self._remove(sequence, self._keys(sequence))

    def _remove(self, sequence: Sequence, keys: list[bytes]) -> None:
        for key in keys:
            if self._owners.get(key) is sequence:
                del self._owners[key]

    def _keys(self, sequence: Sequence, end: int | None = None) -> list[bytes]:
        """Of the blocks from num_settled up to `end`, or all, the prompt's last part of a block included."""
        begin = sequence.num_settled // self._block_size
        if end is None:
            keys = sequence.keys[begin:]
        else:
            keys = sequence.keys[begin : end // self._block_size]
        if sequence.tail_key is not None and (end is None or end >= sequence.num_prompt):
            keys = [*keys, sequence.tail_key]
        return keys

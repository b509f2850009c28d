# SPDX-License-Identifier: Apache-2.0
"""Which blocks hold which tokens. The only writer of that knowledge; it finds, keeps and forgets, and never
decides what to evict: the pool hands out the block that has not been used for longest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.kv.block_pool import BlockPool

# Blocks that begin alike after the same parent and are compared for a partial match, the latest first.
MAX_COMPARED = 8


@dataclass(frozen=True, slots=True)
class PartialMatch:
    """The first `num_tokens` places of a block hold what is looked for."""

    block_id: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class _Entry:
    key: bytes | None  # None: the block is not full
    parent: bytes
    tokens: tuple[int, ...]  # in its first places; (S,) when it is full


class PrefixIndex:
    """One entry for each kept block, found by the key of its contents when it is full, and by what it
    begins with in any case. Of two blocks with equal contents only the first is kept.

    `find` may be called from any thread; all else belongs to the engine's.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._entries: dict[int, _Entry] = {}
        self._by_key: dict[bytes, int] = {}
        self._by_start: dict[tuple[bytes, int], dict[int, None]] = {}  # parent, first token; oldest first
        self._num_evicted = 0

    @property
    def num_evicted(self) -> int:
        """Blocks whose contents made place for others."""
        return self._num_evicted

    def find(self, keys: Sequence[bytes], max_blocks: int) -> list[int]:
        """The blocks that hold the longest known run of `keys` from the first on, at most so many."""
        found = []
        for key in keys[:max_blocks] if len(keys) > max_blocks else keys:
            block_id = self._by_key.get(key)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def knows(self, block_id: int, key: bytes) -> bool:
        """Whether the block is the one that is found by the key."""
        return self._by_key.get(key) == block_id

    def find_partial(self, parent: bytes, tokens: Sequence[int]) -> PartialMatch | None:
        """A block after `parent` that begins with the most of `tokens`, None when none begins with any."""
        if not tokens:
            return None
        best: PartialMatch | None = None
        for block_id in self._latest(parent, tokens[0]):
            num_equal = _num_equal(self._entries[block_id].tokens, tokens)
            if best is None or num_equal > best.num_tokens:
                best = PartialMatch(block_id, num_equal)
        return best

    def put(self, block_id: int, parent: bytes, tokens: tuple[int, ...], key: bytes | None) -> int:
        """The held block holds `tokens` after `parent`. `key`: its name when it is full. A block that is
        known already, then part full, has gained tokens. Returns the block that is found by the key from
        now on: another one, when that had the same contents before."""
        if key is not None and key in self._by_key:
            if self._by_key[key] != block_id:
                self.forget(block_id)  # two computed the same; one of them is enough
            return self._by_key[key]
        before = self._entries.get(block_id)
        assert before is None or before.key is None, "a full block does not change"
        if before is None:
            self._pool.keep(block_id)
            self._by_start.setdefault((parent, tokens[0]), {})[block_id] = None
        if key is not None:
            self._by_key[key] = block_id
        self._entries[block_id] = _Entry(key, parent, tokens)
        return block_id

    def drop_evicted(self, block_ids: Iterable[int]) -> None:
        """The pool gave these blocks to somebody else."""
        for block_id in block_ids:
            self._remove(block_id)
            self._num_evicted += 1

    def forget(self, block_id: int) -> None:
        """Whatever the block holds, it is not to be found any more."""
        if block_id in self._entries:
            self._remove(block_id)
            self._pool.unkeep(block_id)

    def clear(self) -> None:
        """Forget everything. Blocks that are held stay with their holders."""
        for block_id in list(self._entries):
            self.forget(block_id)

    def entries(self) -> dict[int, tuple[bytes | None, bytes, tuple[int, ...]]]:
        """Key, parent and tokens of every kept block, for checks."""
        return {block_id: (e.key, e.parent, e.tokens) for block_id, e in self._entries.items()}

    def _latest(self, parent: bytes, token: int) -> list[int]:
        alike = self._by_start.get((parent, token))
        if alike is None:
            return []
        return [block_id for block_id, _ in zip(reversed(alike), range(MAX_COMPARED), strict=False)]

    def _remove(self, block_id: int) -> None:
        entry = self._entries.pop(block_id)
        if entry.key is not None:
            del self._by_key[entry.key]
        start = (entry.parent, entry.tokens[0])
        alike = self._by_start[start]
        del alike[block_id]
        if not alike:
            del self._by_start[start]


def _num_equal(some: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens they have in common from the first on."""
    for place, (one, other) in enumerate(zip(some, others, strict=False)):
        if one != other:
            return place
    return min(len(some), len(others))

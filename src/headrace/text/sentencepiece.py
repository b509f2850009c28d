# SPDX-License-Identifier: Apache-2.0
"""SentencePiece's BPE: the neighbours whose joined text is the best-scored token are joined first, the
leftmost where scores are equal (Kudo and Richardson 2018). It needs no merge list, only the vocabulary,
so it starts at once; the `tokenizers` library would need half a million merges derived for Gemma, which
takes seconds. Control and user-defined tokens are no part of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from headrace.text.tokenizer import Place

SPACE = "▁"  # stands for a space in token texts
MAX_REMEMBERED = 1 << 16  # words whose tokens are kept
MAX_REMEMBERED_CHARS = 32

_BYTE_TEXT = re.compile(r"<0x([0-9A-F]{2})>")


def piece_bytes(text: str) -> bytes:
    """The bytes a token text stands for."""
    byte = _BYTE_TEXT.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace(SPACE, " ").encode()


@dataclass(frozen=True, slots=True)
class SpaceRules:
    """What happens to text before it is cut into tokens."""

    adds_prefix: bool = True  # a space before the text, and before text behind a control token
    removes_extra: bool = False  # runs of spaces become one, spaces at the ends go


class SentencePieceEncoder:
    """
    Args:
        ids: the tokens that text may become, by text.
        scores: (V,) of every token, higher is joined earlier.
        unused: of `ids`, those that may be joined up on the way but not stay.
        byte_ids: 256 ids for characters that are no token, or None when the model has none.
        unknown_id: for a run of such characters when there are no byte tokens.
    """

    def __init__(
        self,
        ids: Mapping[str, int],
        scores: Sequence[float],
        *,
        byte_ids: Sequence[int] | None,
        unknown_id: int | None,
        spaces: SpaceRules,
        unused: frozenset[str] = frozenset(),
    ) -> None:
        self._ids = ids
        self._scores = scores
        self._byte_ids = byte_ids
        self._unknown_id = unknown_id
        self._spaces = spaces
        self._unused = unused
        self._word_start = _word_start(ids)
        self._remembered: dict[str, list[int]] = {}  # a cache: what is in it never changes a result

    def encode(self, text: str, place: Place) -> list[int]:
        tokens: list[int] = []
        for word in self._word_start.split(self._spell(text, place)):
            tokens += self._word_ids(word)
        return tokens if self._byte_ids is not None else self._join_unknown(tokens)

    def _spell(self, text: str, place: Place) -> str:
        if self._spaces.removes_extra:
            text = re.sub(" +", " ", text.strip(" "))
        if self._spaces.adds_prefix and place is not Place.INSIDE and text:
            text = " " + text
        return text.replace(" ", SPACE)

    def _word_ids(self, word: str) -> list[int]:
        known = self._remembered.get(word)
        if known is None:
            known = [token for piece in self._join(word) for token in self._piece_ids(piece)]
            if len(word) <= MAX_REMEMBERED_CHARS:
                if len(self._remembered) >= MAX_REMEMBERED:
                    self._remembered.clear()
                self._remembered[word] = known
        return known

    def _join(self, word: str) -> Iterator[str]:
        """Pieces of the word: tokens, and single characters that are none.

        A symbol is named by where it starts; `ends[start]` is where it ends, 0 once it was joined to
        the symbol before it. Queue entries of symbols that have changed since are passed over."""
        length = len(word)
        ends = list(range(1, length + 1))
        befores = list(range(-1, length - 1))
        ids, scores = self._ids, self._scores
        halves: dict[str, tuple[str, str]] = {}
        queue: list[tuple[float, int, int, int]] = []

        def consider(left: int, middle: int, right: int) -> tuple[float, int, int, int] | None:
            text = word[left:right]
            token = ids.get(text)
            if token is None:
                return None
            if text in self._unused:
                halves[text] = (word[left:middle], word[middle:right])
            return (-scores[token], left, middle, right)

        for start in range(length - 1):
            if (entry := consider(start, start + 1, start + 2)) is not None:
                queue.append(entry)
        heapify(queue)
        while queue:
            _, left, middle, right = heappop(queue)
            if ends[left] != middle or ends[middle] != right:
                continue
            ends[left], ends[middle] = right, 0
            if right < length:
                befores[right] = left
                if (entry := consider(left, right, ends[right])) is not None:
                    heappush(queue, entry)
            before = befores[left]
            if before >= 0 and (entry := consider(before, left, right)) is not None:
                heappush(queue, entry)
        start = 0
        while start < length:
            yield from _without_unused(word[start : ends[start]], halves)
            start = ends[start]

    def _piece_ids(self, piece: str) -> Sequence[int]:
        token = self._ids.get(piece)
        if token is not None:
            return (token,)
        if self._byte_ids is not None:
            return [self._byte_ids[byte] for byte in piece.encode()]
        return () if self._unknown_id is None else (self._unknown_id,)

    def _join_unknown(self, tokens: list[int]) -> list[int]:
        """A run of unknown characters is one unknown token."""
        unknown = self._unknown_id
        before = [None, *tokens]
        return [t for t, last in zip(tokens, before, strict=False) if t != unknown or last != unknown]


def _word_start(ids: Mapping[str, int]) -> re.Pattern[str]:
    """Matches the empty places where text may be cut without changing its tokens: before a space whose
    preceding character no token has before a space. Words so cut are short and often seen before."""
    heads = "\n".join(ids).split(SPACE)
    glue = {head[-1] for head in heads[:-1] if head}
    glue.discard("\n")
    return re.compile(f"(?<=[^{re.escape(''.join(sorted(glue)) + SPACE)}])(?={SPACE})")


def _without_unused(piece: str, halves: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """An unused token gives way to the two it was joined from, and so on down."""
    rest = [piece]
    while rest:
        piece = rest.pop()
        if piece in halves:
            rest += reversed(halves[piece])
        else:
            yield piece

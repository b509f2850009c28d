# SPDX-License-Identifier: Apache-2.0
"""Finds tokens that stand in text as they are written, such as `<|im_start|>`: leftmost first, the
longest where several begin at one place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping


class MarkerSplitter:
    """Cuts text at markers (text -> token id)."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = {text: token for text, token in ids.items() if text}
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[:2], set()).add(len(text))
        # first two characters -> lengths of the markers that begin so, longest first
        self._lengths = {head: sorted(found, reverse=True) for head, found in lengths.items()}
        firsts = "".join(sorted({text[0] for text in self._ids}))
        self._first = re.compile(f"[{re.escape(firsts)}]") if firsts else None

    def split(self, text: str) -> Iterator[str | int]:
        """Pieces in order: a str is text between markers, never empty; an int is a marker's token id."""
        done = 0
        for start, end, token in self.find(text):
            if done < start:
                yield text[done:start]
            yield token
            done = end
        if done < len(text):
            yield text[done:]

    def find(self, text: str) -> Iterator[tuple[int, int, int]]:
        """(start, end, token id) of each marker, none overlapping."""
        if self._first is None:
            return
        place = 0
        while (candidate := self._first.search(text, place)) is not None:
            start = candidate.start()
            end, token = self._match(text, start)
            if token is not None:
                yield start, end, token
            place = end

    def _match(self, text: str, start: int) -> tuple[int, int | None]:
        """End and id of the longest marker at `start`; the next place to look at when there is none."""
        head = text[start : start + 2]
        for length in self._lengths.get(head, ()):
            token = self._ids.get(text[start : start + length])
            if token is not None:
                return start + length, token
        return start + 1, self._ids.get(head[:1])

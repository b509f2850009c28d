# SPDX-License-Identifier: Apache-2.0
"""Finds the first of several stop strings in text that comes in pieces. What may still become a stop
string is held back; the cost of a character does not grow with the text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scan:
    """Text that is safe to show, and the stop string that ends it, if one was found."""

    text: str
    stopped: str | None


class _Matcher:
    """Follows one stop string through a text (Knuth, Morris and Pratt 1977)."""

    __slots__ = ("_fallback", "num_matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matched = 0  # how much of the stop string the text so far ends with
        self._fallback = _fallbacks(stop)

    def feed(self, char: str) -> bool:
        """True when the stop string ends with this character."""
        matched = self.num_matched
        while matched and (matched == len(self.stop) or self.stop[matched] != char):
            matched = self._fallback[matched - 1]
        self.num_matched = matched + (self.stop[matched] == char)
        return self.num_matched == len(self.stop)


def _fallbacks(stop: str) -> list[int]:
    """For each prefix of the stop string, the length of its longest proper prefix that ends it too."""
    lengths = [0] * len(stop)
    matched = 0
    for place in range(1, len(stop)):
        while matched and stop[place] != stop[matched]:
            matched = lengths[matched - 1]
        matched += stop[place] == stop[matched]
        lengths[place] = matched
    return lengths


class StopScanner:
    """The match that begins first in the text wins, of two that begin together the shorter one: the
    same as looking through the whole text afterwards, however it was cut into pieces.

    Args:
        stops: non-empty strings.
        include_stop: whether the text ends after the stop string instead of before it.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool) -> None:
        assert all(stops)
        self._matchers = [_Matcher(stop) for stop in stops]
        firsts = "".join(sorted({stop[0] for stop in stops}))
        self._first = re.compile(f"[{re.escape(firsts)}]")
        self._include_stop = include_stop
        self._held = ""  # the end of the text, not shown yet
        self._num_shown = 0
        self._best: tuple[int, str] | None = None  # where the best match begins, and its stop string

    def feed(self, piece: str) -> Scan:
        start_of_piece = self._num_shown + len(self._held)
        self._held += piece
        is_idle = not any(matcher.num_matched for matcher in self._matchers)
        place = 0
        while place < len(piece):
            if is_idle:  # nothing has begun: go to where something can
                candidate = self._first.search(piece, place)
                if candidate is None:
                    break
                place = candidate.start()
            is_idle = self._step(piece[place], start_of_piece + place + 1)
            if self._best is not None and self._best[0] <= self._pending(start_of_piece + place + 1):
                return self._stop()
            place += 1
        safe = self._pending(start_of_piece + len(piece))
        if self._best is not None:
            safe = min(safe, self._best[0])
        return Scan(self._show(safe - self._num_shown), None)

    def flush(self) -> Scan:
        """The text is over: what was held back for a longer match leaves."""
        if self._best is not None:
            return self._stop()
        return Scan(self._show(len(self._held)), None)

    def _step(self, char: str, end: int) -> bool:
        """Follow one character, which ends at `end`. True when no stop string has begun."""
        is_idle = True
        for matcher in self._matchers:
            if matcher.feed(char):
                start = end - len(matcher.stop)
                if self._best is None or start < self._best[0]:
                    self._best = (start, matcher.stop)
            is_idle = is_idle and not matcher.num_matched
        return is_idle

    def _pending(self, end: int) -> int:
        """Where the earliest stop string that may still come begins, in a text that ends at `end`."""
        open_lengths = (m.num_matched for m in self._matchers if m.num_matched < len(m.stop))
        return end - max(open_lengths, default=0)

    def _stop(self) -> Scan:
        assert self._best is not None
        start, stop = self._best
        end = start + len(stop) if self._include_stop else start
        text = self._show(end - self._num_shown)
        self._held = ""
        return Scan(text, stop)

    def _show(self, num_chars: int) -> str:
        text, self._held = self._held[:num_chars], self._held[num_chars:]
        self._num_shown += num_chars
        return text

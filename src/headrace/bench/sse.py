# SPDX-License-Identifier: Apache-2.0
"""Server-sent events out of the pieces in which they came, each with the time of the piece that completed
it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def events_of(pieces: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """(time, data) of each event that has data. An event without the blank line behind it is none."""
    rest = b""
    for at_s, piece in pieces:
        rest += piece
        if b"\r" in rest:
            held = rest.endswith(b"\r")  # the other half of a line's end may be on its way
            rest = rest[: len(rest) - held].replace(b"\r\n", b"\n").replace(b"\r", b"\n") + b"\r" * held
        *events, rest = rest.split(b"\n\n")
        for event in events:
            if lines := [line for line in event.split(b"\n") if line.startswith(b"data:")]:
                yield at_s, b"\n".join(line[5:].removeprefix(b" ") for line in lines)

# SPDX-License-Identifier: Apache-2.0
"""The progress bar, on stderr: there on a terminal only. Lines of news come in a log, too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Bar(Protocol):
    """What a fetcher needs of tqdm's bar."""

    n: int
    total: int | None

    def update(self, n: int, /) -> object: ...

    def refresh(self) -> object: ...


def say(text: str, show: bool) -> None:
    """A line of news on stderr."""
    if show:
        print(text, file=sys.stderr, flush=True)


@contextmanager
def byte_bar(what: str, total_bytes: int | None, show: bool, done_bytes: int = 0) -> Iterator[Bar]:
    """A bar that counts bytes. `done_bytes` were there before (a resumed download)."""
    from tqdm import tqdm  # here: only pulling needs it

    with tqdm(
        desc=what,
        total=total_bytes,
        initial=done_bytes,
        unit="B",
        unit_scale=True,
        disable=None if show else True,  # None: unless stderr is a terminal
        dynamic_ncols=True,
    ) as bar:
        yield bar

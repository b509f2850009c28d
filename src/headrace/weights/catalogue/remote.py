# SPDX-License-Identifier: Apache-2.0
"""What every source of model files offers. One class a kind of source; each has its own file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Fetched:
    """Whole, checked files that now lie in the folder that `fetch` was given."""

    files: tuple[str, ...]  # relative to that folder, with '/'
    path: str  # what to open: one of `files`, or "." for the folder
    size_bytes: int
    sha256: str | None  # where there is a single file


class Remote(Protocol):
    @property
    def text(self) -> str:
        """The source as it may be shown and stored: without passwords or signatures."""
        ...

    @property
    def default_name(self) -> str:
        """The short name for a model pulled from here without --name."""
        ...

    @property
    def needed_bytes(self) -> int | None:
        """Room on the disk that a fetch takes at its height, where that is known beforehand."""
        ...

    def fetch(self, folder: Path, sha256: str | None, show: bool) -> Fetched:
        """Put the files into `folder`. What an earlier, interrupted fetch left there is resumed where
        the source can, and deleted where it can't. `sha256` is the user's own demand."""
        ...

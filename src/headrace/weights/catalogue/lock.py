# SPDX-License-Identifier: Apache-2.0
"""One process at a time changes a stored model. The operating system drops the lock when its holder
dies, however it dies, so no lock is ever stale."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _wait_lock(file: IO[bytes]) -> None:
        while not _try_lock(file):  # LK_LOCK gives up after ten seconds, a download does not
            import time

            time.sleep(0.5)
else:
    import fcntl

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _wait_lock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX)


@contextmanager
def exclusive_lock(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold `path` (made if absent, never deleted) exclusively; `on_wait` is called once if another
    process holds it and we have to wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        if not _try_lock(file):
            on_wait()
            _wait_lock(file)
        yield  # closing the file releases the lock

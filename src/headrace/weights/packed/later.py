# SPDX-License-Identifier: Apache-2.0
"""Work that can wait, on a thread of its own: a while after it was asked for, so that the first answers have
the machine, or when the process ends, which then waits for it. Ctrl-C during that wait gives it up."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

DELAY_S = 2.0

IsStopped = Callable[[], bool]


class Later:
    """Calls `work` once. What it is given says whether to stop in the middle."""

    def __init__(self, work: Callable[[IsStopped], object], delay_s: float = DELAY_S) -> None:
        self._work = work
        self._delay_s = delay_s
        self._is_due = threading.Event()
        self._is_stopped = threading.Event()
        self._is_done = threading.Event()  # not the thread's join: one that Ctrl-C broke takes it for ended
        threading.Thread(target=self._run, name="headrace-later", daemon=True).start()
        atexit.register(self.finish)

    def hurry(self) -> None:
        """Begin now, if it has not begun."""
        self._is_due.set()

    def finish(self) -> None:
        """Do it now, and return when it is done."""
        self._is_due.set()
        try:
            self._is_done.wait()
        except KeyboardInterrupt:
            self._is_stopped.set()
            self._is_done.wait()

    def _run(self) -> None:
        self._is_due.wait(self._delay_s)
        try:
            self._work(self._is_stopped.is_set)
        finally:
            atexit.unregister(self.finish)
            del self._work  # and the matrices that it holds
            self._is_done.set()

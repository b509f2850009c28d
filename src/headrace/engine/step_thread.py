# SPDX-License-Identifier: Apache-2.0
"""The thread that computes, so that the engine's can plan and tell meanwhile. One step at a time."""

from __future__ import annotations

import threading
from queue import SimpleQueue

from headrace.core.plan import Backend, StepPlan, StepResult


class StepThread:
    """`begin` hands a plan over, `end` waits for what became of it. Called by one thread, in turn."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._plans: SimpleQueue[StepPlan | None] = SimpleQueue()
        self._results: SimpleQueue[StepResult | Exception] = SimpleQueue()
        self._taken = threading.Lock()  # held but for a moment after a plan was taken
        self._taken.acquire()
        self._thread = threading.Thread(target=self._run, name="headrace-step", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def begin(self, plan: StepPlan) -> None:
        """Returns when this thread can do something beside: were it to go on at once it would keep the
        interpreter from the thread that is to compute."""
        self._plans.put(plan)
        self._taken.acquire()

    def end(self) -> StepResult:
        """Raises what the backend raised."""
        result = self._results.get()
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        """After the last `end`. May be called without `start`."""
        self._plans.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while (plan := self._plans.get()) is not None:
            self._taken.release()
            try:
                self._results.put(self._backend.execute(plan))
            except Exception as error:
                self._results.put(error)

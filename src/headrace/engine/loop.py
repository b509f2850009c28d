# SPDX-License-Identifier: Apache-2.0
"""The engine: one thread that plans, executes, commits and emits until it is closed. Other threads hand it
requests and aborts through an inbox, which it empties at the start of a step."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto

from headrace.core.config import EngineConfig
from headrace.core.errors import EngineStopped
from headrace.core.events import Event, Failed, Sink
from headrace.core.plan import Backend, BackendInfo, StepPlan, StepResult
from headrace.core.request import GenerateRequest
from headrace.engine.admission import check_request, sequences_of
from headrace.engine.outbox import Outbox
from headrace.engine.result_check import check_result
from headrace.engine.scheduler import Scheduler
from headrace.engine.sequence import Sequence
from headrace.engine.stats import EngineStats
from headrace.kv.invariants import check_idle

_log = logging.getLogger(__name__)

# A backend that fails this many steps in a row is not going to recover.
MAX_FAILED_STEPS = 3


class _Phase(Enum):
    OPEN = auto()  # takes requests
    DRAINING = auto()  # finishes what it has
    CLOSED = auto()  # aborts what it has and ends
    DEAD = auto()  # something broke that is not one request's fault


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: str


class Engine:
    """Serves one backend. Everything but the loop may be called from any thread, sinks included.

    Args:
        vocab_size: the tokenizer's. Ids from this one on that the backend has besides are neither taken nor
            drawn. None: all are.
    """

    def __init__(
        self,
        backend: Backend,
        config: EngineConfig | None = None,
        eos_ids: frozenset[int] = frozenset(),
        vocab_size: int | None = None,
    ) -> None:
        self._backend = backend
        self._info = _limited(backend.info, vocab_size)
        self._eos_ids = frozenset(token for token in eos_ids if token < self._info.vocab_size)
        self._scheduler = Scheduler(self._info, config or EngineConfig())
        self._outbox = Outbox()
        self._next_sequence_id = itertools.count().__next__
        self._inbox: deque[Sequence | _Abort] = deque()
        self._wake = threading.Condition()  # guards the inbox and the phase
        self._phase = _Phase.OPEN
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="headrace-engine", daemon=True)
        self._num_failed_steps = 0  # in a row
        self._num_steps = self._num_computed_tokens = self._num_output_tokens = 0
        self._step_s = self._native_s = 0.0

    # ---- any thread ----

    @property
    def info(self) -> BackendInfo:
        """The backend's, with the ids that requests may use."""
        return self._info

    @property
    def alive(self) -> bool:
        """Whether the loop runs and can answer."""
        return self._thread.is_alive() and self._phase in (_Phase.OPEN, _Phase.DRAINING)

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: GenerateRequest, sink: Sink) -> None:
        """Queue a request. RequestError: it can never be served as sent. EngineStopped: nothing new is
        taken. Otherwise the sink hears one Finished for each of its sequences, or one Failed."""
        check_request(request, self._info)
        with self._wake:
            if self._phase is not _Phase.OPEN:
                raise EngineStopped(f"The engine takes no requests: it is {self._phase.name.lower()}")
            self._outbox.open(request.request_id, request.n, sink)
            self._inbox.extend(
                sequences_of(
                    request, self._info, self._eos_ids, self._next_sequence_id, self._scheduler.new_lease
                )
            )
            self._wake.notify_all()

    def abort(self, request_id: str) -> None:
        """Give a request up, whatever it is at; unknown and finished ones are ignored."""
        with self._wake:
            self._inbox.append(_Abort(request_id))
            self._wake.notify_all()

    def drain(self, timeout_s: float | None = None) -> bool:
        """Take nothing new and wait until everything is answered; False when time ran out first."""
        with self._wake:
            if self._phase is _Phase.OPEN:
                self._phase = _Phase.DRAINING
        return self._outbox.wait_empty(timeout_s)

    def close(self) -> None:
        """Abort what is left, end the thread and close the backend. May be called twice."""
        with self._wake:
            is_first, self._is_closed = not self._is_closed, True
            if self._phase is not _Phase.DEAD:
                self._phase = _Phase.CLOSED
            self._wake.notify_all()
        if self._thread.ident is None:  # never started
            self._abort_all()
        elif self._thread is not threading.current_thread():
            self._thread.join()
        if is_first:
            self._backend.close()

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=self._scheduler.num_running,
            num_waiting=self._scheduler.num_waiting + len(self._inbox),
            num_blocks=self._scheduler.pool.num_blocks,
            num_free_blocks=self._scheduler.pool.num_free,
            num_steps=self._num_steps,
            num_computed_tokens=self._num_computed_tokens,
            num_output_tokens=self._num_output_tokens,
            num_preemptions=self._scheduler.num_preemptions,
            num_waiting_for_blocks=0,
            num_queued_tokens=0,
            num_cached_blocks=0,
            num_evicted_blocks=0,
            num_queried_tokens=0,
            num_hit_tokens=0,
            num_refused_queue_full=0,
            num_refused_slo=0,
            num_leased_places=0,
            num_filled_places=0,
            step_s=self._step_s,
            native_s=self._native_s,
        )

    # ---- the engine's thread ----

    def _run(self) -> None:
        try:
            while self._take_inbox():
                self._step()
            self._abort_all()
        except Exception as error:
            _log.exception("the engine stops")
            self._die(f"The engine stopped: {error}")

    def _step(self) -> None:
        begin_s = time.perf_counter()
        plan = self._scheduler.plan()
        try:
            result = self._backend.execute(plan)
            check_result(plan, result, self._info.vocab_size)
        except Exception as error:
            self._fail(plan, error)
            return
        events = self._scheduler.commit(plan, result)
        self._emit(events)
        self._count(plan, result, time.perf_counter() - begin_s)

    def _take_inbox(self) -> bool:
        """Wait until there is something to compute, taking in what comes; False when there never will be."""
        while self._phase in (_Phase.OPEN, _Phase.DRAINING):
            with self._wake:
                messages = list(self._inbox)
                self._inbox.clear()
            for message in messages:
                self._receive(message)
            if self._scheduler.has_work:
                return True
            check_idle(self._scheduler.pool)
            with self._wake:
                self._wake.wait_for(lambda: self._inbox or self._phase is _Phase.CLOSED)
        return False

    def _receive(self, message: Sequence | _Abort) -> None:
        if isinstance(message, _Abort):
            self._emit(self._scheduler.drop(message.request_id))
        else:
            self._scheduler.add(message)

    def _emit(self, events: Iterable[Event]) -> None:
        for request_id in self._outbox.emit(events):
            self._scheduler.drop(request_id)

    def _fail(self, plan: StepPlan, error: Exception) -> None:
        """The step's requests are lost, the others are not; a backend that keeps failing ends the engine."""
        _log.error("a step failed", exc_info=error)
        self._num_failed_steps += 1
        message = f"The model's computation failed: {error}"
        failed = {row.sequence_id for row in plan.rows}
        request_ids = {s.request_id for s in self._scheduler.sequences() if s.sequence_id in failed}
        for request_id in request_ids:
            self._scheduler.drop(request_id)
        self._outbox.emit(Failed(request_id, message) for request_id in request_ids)
        if self._num_failed_steps >= MAX_FAILED_STEPS:
            self._die(message)

    def _die(self, message: str) -> None:
        with self._wake:
            self._phase = _Phase.DEAD
        self._outbox.fail_all(message)

    def _abort_all(self) -> None:
        while self._inbox:
            self._receive(self._inbox.popleft())
        for request_id in {sequence.request_id for sequence in self._scheduler.sequences()}:
            self._emit(self._scheduler.drop(request_id))

    def _count(self, plan: StepPlan, result: StepResult, step_s: float) -> None:
        self._num_failed_steps = 0
        self._num_steps += 1
        self._num_computed_tokens += plan.num_tokens
        self._num_output_tokens += sum(1 for row in plan.rows if row.outputs and row.outputs[-1].draw)
        self._step_s += step_s
        self._native_s += result.native_s


def _limited(info: BackendInfo, vocab_size: int | None) -> BackendInfo:
    return info if vocab_size is None else replace(info, vocab_size=min(info.vocab_size, vocab_size))

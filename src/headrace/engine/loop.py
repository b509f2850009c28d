# SPDX-License-Identifier: Apache-2.0
"""The engine: one thread that plans, commits and emits until it is closed, beside one that computes. While a
step runs, the engine tells of the step before and plans the next one. Other threads hand it requests and
aborts through an inbox, which it empties at the start of a step."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace
from enum import Enum, auto

from headrace.core.config import EngineConfig
from headrace.core.errors import EngineStopped
from headrace.core.events import Event, Failed, Finished, FirstToken, Sink, StepRecord, StepSink
from headrace.core.plan import Backend, BackendInfo, StepPlan, StepResult
from headrace.core.request import GenerateRequest
from headrace.engine.admission import check_request, sequences_of
from headrace.engine.gate import Gate
from headrace.engine.outbox import Outbox
from headrace.engine.rates import OutputLengths, StepCost, StepShape
from headrace.engine.result_check import check_result
from headrace.engine.schedule import Schedule
from headrace.engine.scheduler import Scheduler
from headrace.engine.sequence import Sequence
from headrace.engine.stats import EngineStats, fill_of
from headrace.engine.step_thread import StepThread
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


class _ForgetPrefixes:
    pass


class Engine:
    """Serves one backend. Everything but the loop may be called from any thread, sinks included.

    Args:
        vocab_size: the tokenizer's. Ids from this one on that the backend has besides are neither taken nor
            drawn. None: all are.
        model_key: what tells this model's K/V from another's; it goes into the keys of cached blocks.
        on_step: called on the engine's thread with what each step was; must not block or raise.
    """

    def __init__(
        self,
        backend: Backend,
        config: EngineConfig | None = None,
        eos_ids: frozenset[int] = frozenset(),
        vocab_size: int | None = None,
        *,
        model_key: str = "",
        on_step: StepSink | None = None,
    ) -> None:
        self._backend = backend
        self._info = _limited(backend.info, vocab_size)
        self._eos_ids = frozenset(token for token in eos_ids if token < self._info.vocab_size)
        self._model_key = model_key
        self._on_step = on_step
        config = config or EngineConfig()
        self._cost = StepCost()
        self._scheduler = Scheduler(self._info, config, self._cost)
        self._lengths = OutputLengths()
        self._gate = Gate(config, self._scheduler, self._cost, self._lengths)
        self._steps = StepThread(backend)
        self._outbox = Outbox()
        self._next_sequence_id = itertools.count().__next__
        self._inbox: deque[Sequence | _Abort | _ForgetPrefixes] = deque()
        self._wake = threading.Condition()  # guards the inbox, the gate and the phase
        self._phase = _Phase.OPEN
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="headrace-engine", daemon=True)
        self._num_failed_steps = 0  # in a row
        self._num_steps = self._num_computed_tokens = self._num_output_tokens = 0
        self._step_s = self._native_s = 0.0
        # Of the step before, told while the next one runs.
        self._untold_events: list[Event] = []
        self._untold_record: StepRecord | None = None
        self._unlearned: tuple[StepShape, float] | None = None
        self._turned_s = 0.0  # when the last step ended; 0: there was nothing to do since

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
        self._steps.start()
        self._thread.start()

    def submit(self, request: GenerateRequest, sink: Sink) -> None:
        """Queue a request. RequestError: it can never be served as sent. Overloaded: not now.
        EngineStopped: nothing new is taken. Otherwise the sink hears one Finished for each of its
        sequences, or one Failed."""
        self.submit_all((request,), sink)

    def submit_all(self, requests: Ordered[GenerateRequest], sink: Sink) -> None:
        """Queue all requests or, raising what `submit` raises, none."""
        now_s = time.monotonic()
        for request in requests:
            check_request(request, self._info)
        self.check_room(sum(request.n for request in requests))
        sequences = [self._sequences_of(request, now_s) for request in requests]
        flat = list(itertools.chain.from_iterable(sequences))
        self._gate.check_targets(flat, now_s)
        with self._wake:
            if self._phase is not _Phase.OPEN:
                raise EngineStopped(f"The engine takes no requests: it is {self._phase.name.lower()}")
            self._gate.enter(flat)
            self._outbox.open_all({request.request_id: request.n for request in requests}, sink)
            self._inbox.extend(flat)
            self._wake.notify_all()

    def check_room(self, num_sequences: int) -> None:
        """Raise Overloaded when so many more could not be queued now. Cheap enough to ask before anything
        else is done for a request."""
        with self._wake:
            self._gate.check_room(num_sequences)

    def reset_prefix_cache(self) -> None:
        """Nothing that was computed so far is reused for what comes."""
        self._post(_ForgetPrefixes())

    def abort(self, request_id: str) -> None:
        """Give a request up, whatever it is at; unknown and finished ones are ignored."""
        self._post(_Abort(request_id))

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
            self._steps.close()
            self._backend.close()

    def stats(self) -> EngineStats:
        scheduler = self._scheduler
        num_leased, num_filled = fill_of(scheduler.running, scheduler.pool.block_size)
        return EngineStats(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting + self._gate.num_entering,
            num_blocks=scheduler.pool.num_blocks,
            num_free_blocks=scheduler.pool.num_free,
            num_steps=self._num_steps,
            num_computed_tokens=self._num_computed_tokens,
            num_output_tokens=self._num_output_tokens,
            num_preemptions=scheduler.num_preemptions,
            num_waiting_for_blocks=scheduler.num_waiting_for_blocks,
            num_queued_tokens=scheduler.num_queued_tokens + self._gate.num_entering_tokens,
            num_cached_blocks=scheduler.pool.num_kept,
            num_evicted_blocks=scheduler.index.num_evicted,
            num_queried_tokens=scheduler.num_queried_tokens,
            num_hit_tokens=scheduler.num_hit_tokens,
            num_refused_queue_full=self._gate.num_refused_queue_full,
            num_refused_slo=self._gate.num_refused_slo,
            num_leased_places=num_leased,
            num_filled_places=num_filled,
            step_s=self._step_s,
            native_s=self._native_s,
        )

    def _post(self, message: _Abort | _ForgetPrefixes) -> None:
        with self._wake:
            self._inbox.append(message)
            self._wake.notify_all()

    def _sequences_of(self, request: GenerateRequest, now_s: float) -> list[Sequence]:
        return sequences_of(
            request,
            self._info,
            self._eos_ids,
            self._next_sequence_id,
            self._scheduler.new_lease,
            model_key=self._model_key,
            now_s=now_s,
        )

    # ---- the engine's thread ----

    def _run(self) -> None:
        ahead: Schedule | None = None
        try:
            while (num_received := self._take_inbox()) is not None:
                if num_received or ahead is None:
                    ahead = self._scheduler.plan()  # as good as free; the one made ahead knew less
                ahead = self._step(ahead)
            self._tell()
            self._abort_all()
        except Exception as error:
            _log.exception("the engine stops")
            self._die(f"The engine stopped: {error}")

    def _step(self, schedule: Schedule) -> Schedule | None:
        """One step; the schedule of the next one, as far as it could be made while this one ran."""
        begin_s = time.monotonic()
        self._scheduler.begin(schedule, begin_s)
        self._steps.begin(schedule.step)
        self._tell()
        ahead = self._scheduler.plan()
        try:
            result = self._steps.end()
            check_result(schedule.step, result, self._info.vocab_size)
        except Exception as error:
            self._turned_s = 0.0
            self._fail(schedule.step, error)
            return None
        now_s = time.monotonic()
        self._untold_events = self._scheduler.commit(schedule, result, now_s)
        self._learn()
        self._count(schedule.step, result, begin_s)
        return self._scheduler.filled(ahead) if ahead.step.rows else None

    def _take_inbox(self) -> int | None:
        """Wait until there is something to compute, taking in what comes. How many messages came; None when
        there never will be anything."""
        num_received = 0
        while self._phase in (_Phase.OPEN, _Phase.DRAINING):
            with self._wake:
                messages = list(self._inbox)
                self._inbox.clear()
                self._gate.clear_entering()
                for message in messages:
                    self._receive(message)
            num_received += len(messages)
            if self._scheduler.has_work:
                return num_received
            self._tell()
            self._turned_s = 0.0
            check_idle(self._scheduler.pool)
            with self._wake:
                self._wake.wait_for(lambda: self._inbox or self._phase is _Phase.CLOSED)
        return None

    def _receive(self, message: Sequence | _Abort | _ForgetPrefixes) -> None:
        match message:
            case Sequence():
                self._scheduler.add(message)
            case _Abort():
                self._untold_events += self._scheduler.drop(message.request_id, time.monotonic())
            case _ForgetPrefixes():
                self._scheduler.forget_prefixes()

    def _tell(self) -> None:
        """Of the step before."""
        events, self._untold_events = self._untold_events, []
        for request_id in self._outbox.emit(events):
            self._scheduler.drop(request_id)
        unlearned, self._unlearned = self._unlearned, None
        if unlearned is not None:
            self._cost.learn(*unlearned)
        record, self._untold_record = self._untold_record, None
        if record is not None and self._on_step is not None:
            self._on_step(record)

    def _fail(self, plan: StepPlan, error: Exception) -> None:
        """The step's requests are lost, the others are not; a backend that keeps failing ends the engine."""
        _log.error("a step failed", exc_info=error)
        self._num_failed_steps += 1
        message = f"The model's computation failed: {error}"
        failed = {row.sequence_id for row in plan.rows}
        request_ids = {s.request_id for s in self._scheduler.sequences() if s.sequence_id in failed}
        for request_id in request_ids:
            self._scheduler.drop(request_id)
        self._untold_events += [Failed(request_id, message) for request_id in request_ids]
        self._tell()
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
            self._untold_events += self._scheduler.drop(request_id, time.monotonic())
        self._tell()

    def _learn(self) -> None:
        for event in self._untold_events:
            if isinstance(event, FirstToken):
                self._gate.learn(event)
            elif isinstance(event, Finished) and event.reason != "abort":
                self._lengths.learn(event.num_output)

    def _count(self, plan: StepPlan, result: StepResult, begin_s: float) -> None:
        """A step's time is from the end of the one before to its own, or from its begin after a rest."""
        now_s = time.monotonic()
        step_s = now_s - (self._turned_s or begin_s)
        self._turned_s = now_s
        num_drawn = sum(1 for row in plan.rows if row.outputs and row.outputs[-1].draw)
        self._num_failed_steps = 0
        self._num_steps += 1
        self._num_computed_tokens += plan.num_tokens
        self._num_output_tokens += num_drawn
        self._step_s += step_s
        self._native_s += result.native_s
        num_answer = sum(1 for row in plan.rows if row.num_new == 1)
        if plan.rows:
            self._unlearned = (_shape(plan, num_answer), step_s)
        self._untold_record = StepRecord(
            num_rows=len(plan.rows),
            num_tokens=plan.num_tokens,
            num_prompt_tokens=plan.num_tokens - num_answer,
            num_drawn=num_drawn,
            step_s=step_s,
            native_s=result.native_s,
            itl_s=self._scheduler.last_gaps_s,
        )


def _shape(plan: StepPlan, num_answer: int) -> StepShape:
    attended = sum(row.num_new * (row.num_computed + row.num_new / 2) for row in plan.rows)
    return StepShape(plan.num_tokens - num_answer, num_answer, attended)


def _limited(info: BackendInfo, vocab_size: int | None) -> BackendInfo:
    return info if vocab_size is None else replace(info, vocab_size=min(info.vocab_size, vocab_size))

# SPDX-License-Identifier: Apache-2.0
"""Which requests are open and whom to tell about them. It guarantees each its last word: one Finished for
each of its sequences, or one Failed. Sinks are called without any lock held."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.core.errors import RequestError
from headrace.core.events import Event, Failed, Finished, Sink

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _OpenRequest:
    sink: Sink
    num_unfinished: int


class Outbox:
    """Any thread may open and wait; the engine's thread alone emits."""

    def __init__(self) -> None:
        self._open: dict[str, _OpenRequest] = {}
        self._changed = threading.Condition()

    @property
    def num_open(self) -> int:
        return len(self._open)

    def open_all(self, num_sequences: Mapping[str, int], sink: Sink) -> None:
        """Requests by id, all or none."""
        with self._changed:
            for request_id in num_sequences:
                if request_id in self._open:
                    raise RequestError(
                        f"A request with the id {request_id!r} is running already", param="request_id"
                    )
            for request_id, num in num_sequences.items():
                self._open[request_id] = _OpenRequest(sink, num)

    def emit(self, events: Iterable[Event]) -> list[str]:
        """Tell the sinks. Returns the requests whose sink raised: they are closed, nobody hears of them."""
        broken: list[str] = []
        for event in events:
            request = self._open.get(event.request_id)
            if request is None:
                continue
            try:
                request.sink(event)
            except Exception:
                _log.exception("the sink of request %s raised; the request is aborted", event.request_id)
                broken.append(event.request_id)
                self._close(event.request_id)
                continue
            if isinstance(event, Finished):
                request.num_unfinished -= 1
            if isinstance(event, Failed) or request.num_unfinished == 0:
                self._close(event.request_id)
        return broken

    def fail_all(self, message: str) -> None:
        self.emit([Failed(request_id, message) for request_id in list(self._open)])

    def wait_empty(self, timeout_s: float | None) -> bool:
        """Whether every request has had its last word within the time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._open, timeout_s)

    def _close(self, request_id: str) -> None:
        with self._changed:
            del self._open[request_id]
            self._changed.notify_all()

# SPDX-License-Identifier: Apache-2.0
"""The calls that are being answered, by every id they may be cancelled under. On the event loop's thread
only."""

from __future__ import annotations

from headrace.api.generation import Generation
from headrace.core.errors import RequestError


class OpenCall:
    """From a request's arrival until its answer has left; may be cancelled at any time between."""

    def __init__(self, calls: OpenCalls, owner: str) -> None:
        self._calls = calls
        self._owner = owner
        self._ids: list[str] = []
        self._generation: Generation | None = None
        self._is_cancelled = False

    def share_id(self, call_id: str) -> None:
        """An id that others may have as well: a gateway gives one to all that it makes of a request."""
        self._ids.append(call_id)
        self._calls.add(self._owner, call_id, self)

    def claim_id(self, call_id: str) -> None:
        """An id of its own. Raises RequestError when an open call has it."""
        if call_id in self._ids:
            return
        if self._calls.find(self._owner, call_id):
            raise RequestError(
                f"A request with the id {call_id!r} is running already",
                param="request_id",
                code="duplicate_request_id",
            )
        self.share_id(call_id)

    def attach(self, generation: Generation) -> None:
        """What a cancellation gives up. Before it is submitted."""
        self._generation = generation
        if self._is_cancelled:
            generation.cancel()

    def cancel(self) -> bool:
        """Whether there was something left to cancel."""
        if self._generation is not None and self._generation.is_done:
            return False
        self._is_cancelled = True
        if self._generation is not None:
            self._generation.cancel()
        return True

    def close(self) -> None:
        for call_id in self._ids:
            self._calls.remove(self._owner, call_id, self)
        self._ids.clear()


class OpenCalls:
    def __init__(self) -> None:
        self._by_id: dict[tuple[str, str], list[OpenCall]] = {}

    @property
    def num_open(self) -> int:
        return len({call for calls in self._by_id.values() for call in calls})

    def open(self, owner: str, shared_id: str) -> OpenCall:
        """Whoever opens a call closes it."""
        call = OpenCall(self, owner)
        call.share_id(shared_id)
        return call

    def cancel(self, owner: str, call_id: str) -> bool:
        """Whether one of the owner's calls was open under this id."""
        return any([call.cancel() for call in self.find(owner, call_id)])

    def find(self, owner: str, call_id: str) -> list[OpenCall]:
        return list(self._by_id.get((owner, call_id), ()))

    def add(self, owner: str, call_id: str, call: OpenCall) -> None:
        self._by_id.setdefault((owner, call_id), []).append(call)

    def remove(self, owner: str, call_id: str, call: OpenCall) -> None:
        left = [other for other in self.find(owner, call_id) if other is not call]
        if left:
            self._by_id[owner, call_id] = left
        else:
            self._by_id.pop((owner, call_id), None)

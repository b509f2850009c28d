# SPDX-License-Identifier: Apache-2.0
"""The answers of a `Generation` carried over to an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable

from headrace.api.generation import Gain, Generation
from headrace.core.events import Event
from headrace.observe.answers import AnswerEnd


class AsyncStream:
    """What `generation.stream` is for a thread. Submits when made, so that a refusal is raised before any
    answer begins; `close` must be called, and aborts what is left."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._inbox = _LoopInbox(asyncio.get_running_loop())
        generation.submit(self._inbox.put)

    async def __aiter__(self) -> AsyncIterator[Gain]:
        while not self._generation.is_done:
            for event in await self._inbox.get_all():
                for gain in self._generation.take(event):
                    yield gain

    @property
    def num_output(self) -> int:
        return self._generation.num_output

    @property
    def num_cached(self) -> int:
        return self._generation.num_cached

    def end(self, choice: int) -> AnswerEnd | None:
        return self._generation.end(choice)

    def close(self) -> None:
        self._generation.abort()


class _LoopInbox:
    """Events from the engine's thread to an event loop. A burst wakes the loop once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon: Callable[[Callable[[], None]], object] = loop.call_soon_threadsafe
        self._events: deque[Event] = deque()
        self._ready = asyncio.Event()
        self._is_woken = False  # the engine sets it after adding; the loop clears it before taking

    def put(self, event: Event) -> None:
        self._events.append(event)
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to read
                self._call_soon(self._ready.set)

    async def get_all(self) -> list[Event]:
        await self._ready.wait()
        self._ready.clear()
        self._is_woken = False
        return [self._events.popleft() for _ in range(len(self._events))]

# SPDX-License-Identifier: Apache-2.0
"""Sends calls at their pace and keeps what comes back, unread."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.bench.http_exchange import HttpClient, Reply
from headrace.bench.pace import ClosedLoop, Pace
from headrace.bench.request_record import Call, RequestRecord, Sent, record_of

OnDone = Callable[[Sent], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a load came to."""

    records: tuple[RequestRecord, ...]  # in the order in which they were sent
    elapsed_s: float  # from the first request to the last answer's end
    client_cpu_s: float  # of this process meanwhile


class Sender:
    """Sends calls of one load. `stop` set: those on their way are given up and no more are sent."""

    def __init__(self, client: HttpClient, on_done: OnDone, stop: asyncio.Event) -> None:
        self.stop = stop
        self.sent: list[Sent] = []
        self._client = client
        self._on_done = on_done

    async def send(self, call: Call, due_s: float | None = None) -> Sent:
        """Returns when it is answered, failed or given up."""
        sent = self.begin(call, due_s)
        await self.finish(sent)
        return sent

    def begin(self, call: Call, due_s: float | None = None) -> Sent:
        sent = Sent(call, time.perf_counter() if due_s is None else due_s, Reply())
        self.sent.append(sent)
        return sent

    async def finish(self, sent: Sent) -> None:
        try:
            await self._client.post(sent.call.path, sent.call.body, sent.reply)
        except asyncio.CancelledError:
            sent.cancelled = True
            sent.reply.end_s = time.perf_counter()
            sent.reply.heard.set()
            raise
        self._on_done(sent)


async def run_load(sender: Sender, calls: Sequence[Call], pace: Pace, duration_s: float | None) -> Load:
    """Nothing more is sent after `duration_s`, and what was sent is waited for."""

    def begin() -> Awaitable[object]:
        end_s = time.perf_counter() + (float("inf") if duration_s is None else duration_s)
        if not isinstance(pace, ClosedLoop):
            return _open_loop(sender, calls, end_s)
        left = iter(calls)
        return asyncio.gather(*(_lane(sender, left, end_s) for _ in range(pace.concurrency)))

    return await timed(sender, begin)


async def timed(sender: Sender, begin: Callable[[], Awaitable[object]]) -> Load:
    """Begin and await the work, or less when `sender.stop` is set, and read what came. The time counts from
    when the collector has had its last look, which takes a while in a large process."""
    with _collector_paused():
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        await _until_stopped(asyncio.ensure_future(begin()), sender.stop)
        cpu_s = time.process_time() - begin_cpu_s
    end_s = max((sent.reply.end_s for sent in sender.sent), default=begin_s)
    first_s = min((sent.reply.sent_s for sent in sender.sent if sent.reply.sent_s), default=begin_s)
    return Load(
        records=tuple(record_of(sent, first_s) for sent in sender.sent if sent.reply.sent_s),
        elapsed_s=end_s - first_s,
        client_cpu_s=cpu_s,
    )


async def _lane(sender: Sender, left: Iterator[Call], end_s: float) -> None:
    for call in left:
        if time.perf_counter() >= end_s:
            return
        await sender.send(call)


async def _open_loop(sender: Sender, calls: Sequence[Call], end_s: float) -> None:
    begin_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for call in calls:
            due_s = begin_s + (call.at_s or 0.0)
            if due_s >= end_s:
                return
            if (wait_s := due_s - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            group.create_task(sender.send(call, due_s))


async def _until_stopped(work: asyncio.Future[object], stop: asyncio.Event) -> None:
    stopping: asyncio.Future[object] = asyncio.ensure_future(_waited(stop))
    await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
    for task in (work, stopping):
        task.cancel()
    results = await asyncio.gather(work, stopping, return_exceptions=True)
    if isinstance(results[0], Exception):
        raise results[0]


async def _waited(stop: asyncio.Event) -> object:
    return await stop.wait()


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A pause of the client would look like one of the server."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

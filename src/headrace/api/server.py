# SPDX-License-Identifier: Apache-2.0
"""Runs the application on a port, from an empty start to a clean end: the port opens at once, the model
loads on a thread, the first SIGTERM or SIGINT drains, the second ends at once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import uvicorn

from headrace.api.app import AppOptions, create_app
from headrace.api.http.in_flight import InFlight
from headrace.api.readiness import Readiness
from headrace.api.served_model import ServedModel
from headrace.core.errors import ConfigError

POLL_S = 0.05  # how often a drain looks whether it is done
CUT_OFF_S = 2.0  # for streams to tell their clients after the drain's time is up
BACKLOG = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free one
    drain_timeout_s: float = 30.0  # how long running requests may take after the first signal
    app: AppOptions = field(default_factory=AppOptions)


def listen(host: str, port: int) -> socket.socket:
    """Bind before anything slow begins. Raises ConfigError."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}. "
            "Choose another --host or --port (0 takes any free port)"
        ) from None
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server:
    """Serves one model until a signal comes. Its state lives on the event loop's thread.

    Args:
        load: brings up the model; called once, on a thread of its own.
        on_ready: called on the event loop's thread when requests are answered from now on.
    """

    def __init__(
        self,
        options: ServerOptions,
        listener: socket.socket,
        load: Callable[[], ServedModel],
        on_ready: Callable[[ServedModel], None] = lambda model: None,
    ) -> None:
        self._options = options
        self._listener = listener
        self._load = load
        self._on_ready = on_ready
        self._readiness = Readiness()
        self._app: InFlight = create_app(self._readiness, options.app)
        self._uvicorn = _QuietUvicorn(_uvicorn_config(self._app))
        self._model: ServedModel | None = None
        self._load_error: BaseException | None = None
        self._stop = asyncio.Event()

    def run(self) -> int:
        """Serve until told to stop. 0: every running request was finished; 1: some were cut off.
        Raises what `load` raised."""
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(self.serve())

    async def serve(self) -> int:
        loop = asyncio.get_running_loop()
        self._watch_signals(loop)
        threading.Thread(target=self._load_model, args=(loop,), name="headrace-load", daemon=True).start()
        serving = asyncio.create_task(self._uvicorn.serve(sockets=[self._listener]))
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        is_drained = await self._drain() if self._load_error is None else True
        await self._end(serving)
        if self._load_error is not None:
            raise self._load_error
        return 0 if is_drained else 1

    def stop(self) -> None:
        """Drain and end. On the event loop's thread; a second call ends at once."""
        if self._stop.is_set():
            self._uvicorn.force_exit = True
        self._stop.set()

    async def _drain(self) -> bool:
        """Whether all requests were finished in time."""
        self._readiness.set_draining()
        deadline = time.monotonic() + self._options.drain_timeout_s
        while self._app.num_requests and not self._uvicorn.force_exit:
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(POLL_S)
        return self._app.num_requests == 0

    async def _end(self, serving: asyncio.Task[None]) -> None:
        """Aborts what still runs; its clients are told."""
        if self._model is not None:
            await asyncio.to_thread(self._model.engine.close)
        self._uvicorn.should_exit = True
        await serving

    def _watch_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # in tests; `stop` does the same
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(number, self.stop)
            except NotImplementedError:  # Windows
                signal.signal(number, lambda *_: self._stop_from_signal(loop))

    def _stop_from_signal(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon_threadsafe(self.stop)

    def _load_model(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            model = self._load()
        except BaseException as error:
            call = functools.partial(self._set_failed, error)
        else:
            call = functools.partial(self._set_ready, model)
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(call)

    def _set_ready(self, model: ServedModel) -> None:
        self._model = model
        self._readiness.set_ready(model)
        self._on_ready(model)

    def _set_failed(self, error: BaseException) -> None:
        self._load_error = error
        self._stop.set()


class _QuietUvicorn(uvicorn.Server):
    """Signals are ours: uvicorn would close the port at the first one, and die of it at the end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _uvicorn_config(app: InFlight) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=int(CUT_OFF_S),
    )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # Windows
        return asyncio.new_event_loop
    return uvloop.new_event_loop

# SPDX-License-Identifier: Apache-2.0
"""A real server on a free port, on a thread, around any backend; and raw requests to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from headrace.api.served_model import ServedModel
from headrace.api.server import Server, ServerOptions, listen, url_of
from headrace.core.config import EngineConfig
from headrace.core.plan import Backend
from headrace.engine.admission import max_tokens_in
from headrace.engine.loop import Engine
from headrace.observe.counts import StepCounts
from headrace.text.chat_template import ChatTemplate
from headrace.text.tokenizer import Tokenizer
from unit.api.byte_tokenizer import TEMPLATE


def serve_backend(
    backend: Backend,
    tokenizer: Tokenizer,
    *,
    template: str | None = TEMPLATE,
    config: EngineConfig | None = None,
) -> ServedModel:
    """A model around a backend, its engine started."""
    config = config or EngineConfig()
    counts = StepCounts()
    engine = Engine(backend, config, tokenizer.eos_ids, tokenizer.vocab_size, on_step=counts.on_step)
    engine.start()
    return ServedModel(
        names=("tiny", "also-tiny"),
        created_s=1,
        engine=engine,
        tokenizer=tokenizer,
        chat_template=None if template is None else ChatTemplate(template, tokenizer),
        max_model_len=max_tokens_in(engine.info),
        vocab_size=engine.info.vocab_size,
        step_counts=counts,
        enable_prefix_caching=config.enable_prefix_caching,
    )


class LiveServer:
    """Runs until `finish`; `status` is then what the process would exit with."""

    def __init__(self, load: Callable[[], ServedModel], options: ServerOptions | None = None) -> None:
        self._listener = listen("127.0.0.1", 0)
        self.url = url_of(self._listener)
        self.host, self.port = self._listener.getsockname()[:2]
        self.is_ready = threading.Event()
        self.server = Server(options or ServerOptions(), self._listener, load, lambda _: self.is_ready.set())
        self.status: int | None = None
        self.error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.http = httpx.Client(base_url=self.url, timeout=20)

    def wait_ready(self) -> LiveServer:
        assert self.is_ready.wait(10)
        return self

    def stop(self) -> None:
        """What a signal does."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self.server.stop)

    def finish(self) -> int | None:
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):
                self.stop()
        self._thread.join(20)
        assert not self._thread.is_alive()
        self.http.close()
        return self.status

    def join(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()

    def post(self, path: str, body: object) -> httpx.Response:
        return self.http.post(path, json=body)

    def stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The chunks of a stream that ends well."""
        return parse_events(self.post(path, {**body, "stream": True}).content)

    def raw(self, request: bytes) -> socket.socket:
        connection = socket.create_connection((self.host, self.port), timeout=10)
        connection.sendall(request)
        return connection

    def _run(self) -> None:
        async def main() -> int:
            self._loop = asyncio.get_running_loop()
            return await self.server.serve()

        try:
            self.status = asyncio.run(main())
        except BaseException as error:
            self.error = error


def parse_events(body: bytes) -> list[dict[str, Any]]:
    """Chunks of a stream; asserts the framing (case A7)."""
    events = body.split(b"\n\n")
    assert events.pop() == b"", "the last event ends with a blank line"
    assert all(event.startswith(b"data: ") and b"\n" not in event for event in events)
    assert events.pop() == b"data: [DONE]"
    return [json.loads(event.removeprefix(b"data: ")) for event in events]


@contextlib.contextmanager
def running(
    backend: Backend, tokenizer: Tokenizer, options: ServerOptions | None = None, **model: Any
) -> Iterator[LiveServer]:
    server = LiveServer(lambda: serve_backend(backend, tokenizer, **model), options).wait_ready()
    try:
        yield server
    finally:
        server.finish()

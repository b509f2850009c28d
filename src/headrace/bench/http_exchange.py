# SPDX-License-Identifier: Apache-2.0
"""The smallest HTTP/1.1 client that serves for measuring: it notes when which bytes came and reads nothing in
them, so that it takes little of the CPU that it shares with the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

import httptools

from headrace.core.errors import ConfigError


class Reply:
    """What came back so far. Written by the connection, read when it has ended. Times: `perf_counter`."""

    def __init__(self) -> None:
        self.sent_s = 0.0  # before the connection was made or found
        self.end_s = 0.0
        self.status = 0  # 0: no answer
        self.headers: dict[str, str] = {}  # names in lower case
        self.pieces: list[tuple[float, bytes]] = []  # of the body, with the time each came
        self.error: str | None = None  # of the transport
        self.heard = asyncio.Event()  # a first piece is there, or all there will be

    @property
    def body(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces)


class _Connection(asyncio.Protocol):
    """One exchange at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.is_open = False
        self._reply: Reply | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._done: asyncio.Future[None] | None = None
        self._now_s = 0.0

    async def exchange(self, request: bytes, reply: Reply) -> None:
        self._reply = reply
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        assert self.transport is not None
        self.transport.write(request)
        try:
            await self._done
        finally:
            if not self._done.done() or self._done.cancelled():
                self.close()
            self._reply = self._done = None

    def close(self) -> None:
        self.is_open = False
        if self.transport is not None:
            self.transport.abort()

    # ---- asyncio calls these ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport  # type: ignore[assignment]  # uvloop's does not derive from asyncio's
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        self._now_s = time.perf_counter()
        if self._parser is None or self._reply is None:
            self.close()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.close()
            self._end(f"the answer is no HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._now_s = time.perf_counter()
        reply = self._reply
        if reply is None:
            return
        length_is_known = "content-length" in reply.headers or "transfer-encoding" in reply.headers
        if reply.status and not length_is_known:
            self._end(None)  # such a body ends with its connection
        else:
            self._end("the connection was closed before the answer's end" if exc is None else str(exc))

    # ---- the parser calls these ----

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self._reply is not None
        self._reply.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self._reply is not None
        assert self._parser is not None
        self._reply.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        assert self._reply is not None
        self._reply.pieces.append((self._now_s, body))
        self._reply.heard.set()

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if not self._parser.should_keep_alive():
            self.close()
        self._end(None)

    def _end(self, error: str | None) -> None:
        if self._reply is not None:
            self._reply.end_s = self._now_s
            self._reply.error = error
            self._reply.heard.set()
            self._reply = None  # what the connection does from here on is not this reply's
        if self._done is not None and not self._done.done():
            self._done.set_result(None)


class HttpClient:
    """Keeps connections open and uses them again.

    Args:
        url: of the server; a path is put before every request's.
        timeout_s: for one whole exchange.
    """

    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url!r} is no server's URL; one looks like http://127.0.0.1:8000")
        self._is_secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port or (443 if self._is_secure else 80)
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        lines = {"Host": parts.netloc.rpartition("@")[2], "Content-Type": "application/json", **headers}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._timeout_s = timeout_s
        self._idle: list[_Connection] = []

    async def post(self, path: str, body: bytes, reply: Reply | None = None) -> Reply:
        """Fills `reply`, a new one if None. What goes wrong is told there; only cancelling raises."""
        return await self._send("POST", path, body, reply or Reply())

    async def get(self, path: str) -> Reply:
        return await self._send("GET", path, b"", Reply())

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _send(self, method: str, path: str, body: bytes, reply: Reply) -> Reply:
        head = f"{method} {self._base}{path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
        request = head.encode("latin-1") + body
        reply.sent_s = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._exchange(request, reply)
        except TimeoutError:
            reply.error = f"no end within {self._timeout_s:g} s"
        except OSError as error:
            reply.error = f"cannot connect: {error}"
        if not reply.end_s:
            reply.end_s = time.perf_counter()
            reply.heard.set()
        return reply

    async def _exchange(self, request: bytes, reply: Reply) -> None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_open:
                continue
            await self._exchange_on(connection, request, reply)
            if reply.status or connection.is_open:
                return
            reply.error, reply.end_s = None, 0.0  # it had been closed while idle; a new one is asked
            reply.heard.clear()
        loop = asyncio.get_running_loop()
        secure = True if self._is_secure else None
        _, connection = await loop.create_connection(_Connection, self._host, self._port, ssl=secure)
        await self._exchange_on(connection, request, reply)

    async def _exchange_on(self, connection: _Connection, request: bytes, reply: Reply) -> None:
        await connection.exchange(request, reply)
        if connection.is_open:
            self._idle.append(connection)

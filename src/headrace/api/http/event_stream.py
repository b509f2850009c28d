# SPDX-License-Identifier: Apache-2.0
"""Server-sent events: each `data: {json}` and a blank line, `data: [DONE]` at the end. What breaks after
the first byte is one event with an error object, then the end without [DONE]."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.api.http.disconnect import until_disconnect
from headrace.api.http.errors import error_object
from headrace.core.errors import HeadraceError

_log = logging.getLogger(__name__)

Chunk = Mapping[str, object]


def event_of(chunk: Chunk) -> bytes:
    text = json.dumps(chunk, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return b"data: " + text.encode("utf-8") + b"\n\n"


class EventStream(Response):
    """Chunks that come together leave in one write. `close` is called once, however it ends."""

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncIterator[Sequence[Chunk]], close: Callable[[], None]) -> None:
        self.status_code = 200
        self.background = None
        self._chunks = chunks
        self._close = close
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_disconnect(receive, self._send_all(send))
        except ClientDisconnect:
            _log.debug("the client left a stream")
        finally:
            self._close()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for chunks in self._chunks:
                await _send_body(send, b"".join(map(event_of, chunks)))
            await _send_body(send, b"data: [DONE]\n\n")
        except Exception as error:
            if not isinstance(error, HeadraceError):
                _log.exception("a stream broke")
            await _send_body(send, event_of({"error": error_object(error)[1]}))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_body(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})

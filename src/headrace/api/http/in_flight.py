# SPDX-License-Identifier: Apache-2.0
"""Counts the requests that are being answered, so that a drain knows when it is done."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class InFlight:
    """ASGI middleware; on the event loop's thread only."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.num_requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self.num_requests += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self.num_requests -= 1

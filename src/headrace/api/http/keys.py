# SPDX-License-Identifier: Apache-2.0
"""API keys: one of them is needed on every route but the open ones."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.api.http.errors import error_response
from headrace.api.http.origin import bearer_key
from headrace.core.errors import RequestError

OPEN_PATHS = frozenset({"/health", "/ping"})  # probes carry no keys


class KeyCheck:
    """ASGI middleware. Keys are compared in constant time."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] == "http"
            and scope["path"] not in OPEN_PATHS
            and not self._fits(Headers(scope=scope))
        ):
            error = RequestError(
                "This server needs an API key: send `Authorization: Bearer KEY` with a right one",
                code="invalid_api_key",
                status=401,
            )
            await error_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _fits(self, headers: Headers) -> bool:
        given = bearer_key(headers).encode()
        fits = [hmac.compare_digest(key, given) for key in self._keys]
        return any(fits)

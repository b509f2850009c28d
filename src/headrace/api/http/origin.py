# SPDX-License-Identifier: Apache-2.0
"""Who sent a request and when it came: noted before anything else is done with it. Every response carries the
request's id."""

from __future__ import annotations

import hashlib
import re
import time
import uuid
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_SCOPE_KEY = "headrace.origin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    request_id: str  # as sent in X-Request-Id, or made up
    arrival_s: float  # time.monotonic()
    owner: str  # who alone may cancel: the API key's digest; "" where none is needed
    tenant: str  # who shares with whom: the owner, or X-Tenant-ID where no key is needed


def origin_of(request: Request) -> Origin:
    origin = request.scope[_SCOPE_KEY]
    assert isinstance(origin, Origin)
    return origin


def digest_of_key(key: str) -> str:
    """A name for whoever has the key, which does not give it away."""
    return "key-" + hashlib.sha256(key.encode()).hexdigest()[:24]


class Origins:
    """ASGI middleware, around the check of keys: an origin means nothing before that."""

    def __init__(self, app: ASGIApp, *, needs_keys: bool) -> None:
        self._app = app
        self._needs_keys = needs_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        origin = self._origin(Headers(scope=scope))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = origin.request_id
            await send(message)

        await self._app({**scope, _SCOPE_KEY: origin}, receive, send_with_id)

    def _origin(self, headers: Headers) -> Origin:
        arrival_s = time.monotonic()
        given = headers.get("x-request-id", "")
        owner = digest_of_key(bearer_key(headers)) if self._needs_keys else ""
        return Origin(
            request_id=given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex,
            arrival_s=arrival_s,
            owner=owner,
            tenant=owner or headers.get("x-tenant-id", ""),
        )


def bearer_key(headers: Headers) -> str:
    """The key in `Authorization: Bearer KEY`, "" when there is none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""

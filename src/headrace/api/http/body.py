# SPDX-License-Identifier: Apache-2.0
"""A request's JSON body, read and parsed within limits, so that no body can hold up the others."""

from __future__ import annotations

import asyncio
import json
from typing import NoReturn

from starlette.requests import Request

from headrace.core.errors import RequestError

MAX_BODY_BYTES = 16 * 2**20
MAX_DEPTH = 64  # nested lists and objects
LONG_BODY_BYTES = 64 * 2**10  # parsed beside the event loop from here on


async def read_json_object(request: Request) -> dict[str, object]:
    """The body as a JSON object. Raises RequestError (400, 413) or ClientDisconnect."""
    _check_headers(request)
    body = await _read(request)
    if len(body) < LONG_BODY_BYTES:
        return parse_json_object(body)
    return await asyncio.to_thread(parse_json_object, body)


def parse_json_object(body: bytes) -> dict[str, object]:
    """Strict JSON: UTF-8, no NaN or Infinity, no half surrogates, not too deep."""
    try:
        value = json.loads(body.decode("utf-8-sig"), parse_constant=_refuse_constant)
        if b"\\ud" in body or b"\\uD" in body:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise _too_deep() from None
    except UnicodeEncodeError:
        raise RequestError("The body holds half a surrogate pair, which is no character") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"The body is not UTF-8: {error.reason} at byte {error.start}") from None
    except ValueError as error:  # JSONDecodeError, and integers of thousands of digits
        raise RequestError(f"The body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestError(f"The body must be a JSON object, not {type(value).__name__}")
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    return value


def _check_headers(request: Request) -> None:
    kind = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise RequestError(f"The content type must be application/json, got {kind!r}")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise RequestError(f"Send the body uncompressed; the content encoding {encoding!r} is not taken")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > MAX_BODY_BYTES:
        raise _too_large()


async def _read(request: Request) -> bytes:
    chunks: list[bytes] = []
    num_bytes = 0
    async for chunk in request.stream():
        num_bytes += len(chunk)
        if num_bytes > MAX_BODY_BYTES:
            raise _too_large()
        chunks.append(chunk)
    return b"".join(chunks)


def _check_depth(value: object) -> None:
    level: list[object] = [value]
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)  # type: ignore[attr-defined]
            if isinstance(child, (dict, list))
        ]
    raise _too_deep()


def _too_deep() -> RequestError:
    return RequestError(f"The body is nested more than {MAX_DEPTH} levels deep")


def _too_large() -> RequestError:
    return RequestError(
        f"The body is larger than the {MAX_BODY_BYTES} bytes that are taken",
        code="request_too_large",
        status=413,
    )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")

# SPDX-License-Identifier: Apache-2.0
"""Every error leaves in OpenAI's shape, `{"error": {message, type, param, code}}`, with a status that
agrees with it."""

from __future__ import annotations

import math
from typing import NotRequired, TypedDict

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from headrace.core.errors import EngineStopped, HeadraceError, Overloaded, RequestError

RETRY_AFTER_S = 1
CLIENT_LEFT = 499  # nobody sees it but a log


class ErrorObject(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None
    # Of a 429.
    predicted_ttft_ms: NotRequired[float | None]
    retry_after_ms: NotRequired[float]


class Unavailable(RequestError):
    """The server cannot answer now: it loads, drains or has broken."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message, code=code, status=503)


def error_object(error: Exception) -> tuple[int, ErrorObject]:
    """The status and the `error` object for an exception. What is not ours is not shown."""
    if isinstance(error, Overloaded):
        return error.status, _overloaded(error)
    if isinstance(error, RequestError):
        return error.status, _object(error.status, str(error), error.param, error.code)
    if isinstance(error, EngineStopped):
        return 503, _object(503, str(error), None, "engine_stopped")
    if isinstance(error, HeadraceError):
        return 500, _object(500, str(error), None, "generation_failed")
    return 500, _object(500, "Something broke inside the server; its log says what", None, "internal_error")


def error_response(error: Exception) -> JSONResponse:
    status, body = error_object(error)
    return JSONResponse({"error": body}, status, _headers(error, status))


def _headers(error: Exception, status: int) -> dict[str, str]:
    if isinstance(error, Overloaded):
        headers = {"Retry-After": str(max(math.ceil(error.retry_after_s), 1))}
        if error.predicted_ttft_s is not None:
            headers["X-Predicted-TTFT-Ms"] = f"{error.predicted_ttft_s * 1000:.0f}"
        return headers
    return {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else {}


def _overloaded(error: Overloaded) -> ErrorObject:
    predicted_s = error.predicted_ttft_s
    return {
        "message": str(error),
        "type": "rate_limit_error",
        "param": error.param,
        "code": error.code,
        "predicted_ttft_ms": None if predicted_s is None else predicted_s * 1000,
        "retry_after_ms": error.retry_after_s * 1000,
    }


def add_error_routes(app: FastAPI) -> None:
    """Turn what routes raise, and what no route answers, into responses."""

    async def ours(_: Request, error: Exception) -> JSONResponse:
        return error_response(error)

    async def from_router(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        message, code = str(error.detail), None
        if error.status_code == 404:
            message, code = f"There is nothing at {request.url.path}", "not_found"
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "another method")
            message = f"{request.url.path} takes {allowed}, not {request.method}"
            code = "method_not_allowed"
        body = _object(error.status_code, message, None, code)
        return JSONResponse({"error": body}, error.status_code, error.headers)

    async def unforeseen(_: Request, error: Exception) -> JSONResponse:
        return error_response(error)  # and the HTTP server logs it

    async def left(_: Request, __: Exception) -> Response:
        return Response(status_code=CLIENT_LEFT)

    app.add_exception_handler(HeadraceError, ours)
    app.add_exception_handler(ClientDisconnect, left)
    app.add_exception_handler(HTTPException, from_router)
    app.add_exception_handler(Exception, unforeseen)


def _object(status: int, message: str, param: str | None, code: str | None) -> ErrorObject:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"message": message, "type": kind, "param": param, "code": code}

# SPDX-License-Identifier: Apache-2.0
"""The HTTP application: every route and what stands before it. It serves from the first moment on; until
a model is there, routes that need one answer 503."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from headrace import __version__
from headrace.api.http.errors import add_error_routes
from headrace.api.http.in_flight import InFlight
from headrace.api.http.keys import KeyCheck
from headrace.api.http.origin import Origins
from headrace.api.openai.chat import chat_routes
from headrace.api.openai.completions import completion_routes
from headrace.api.openai.models import model_routes
from headrace.api.openai.tokenize import tokenize_routes
from headrace.api.operations import operation_routes
from headrace.api.readiness import Readiness
from headrace.api.service import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class AppOptions:
    api_keys: Sequence[str] = ()  # empty: no key is needed
    allowed_origins: Sequence[str] = ()  # web pages that may call from a browser; "*": all
    has_vllm_metrics: bool = False  # vLLM's names on the metrics page, beside our own
    reports_metrics: bool = False  # vLLM's `metrics` in every answer


def create_app(readiness: Readiness, options: AppOptions | None = None) -> InFlight:
    """The ASGI application, outermost layer first: counting, origins, CORS, keys, routes."""
    options = options or AppOptions()
    routes = FastAPI(title="Headrace", version=__version__)
    add_error_routes(routes)
    service = Service(
        readiness=readiness,
        has_vllm_metrics=options.has_vllm_metrics,
        reports_metrics=options.reports_metrics,
    )
    # Routes are tried in this order, so the busiest come first.
    for answering in (chat_routes, completion_routes, operation_routes):
        routes.include_router(answering(service))
    for group in (model_routes, tokenize_routes):
        routes.include_router(group(readiness))
    _add_health(routes, readiness)
    app: ASGIApp = routes
    if options.api_keys:
        app = KeyCheck(app, options.api_keys)
    if options.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=options.allowed_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "Retry-After", "X-Predicted-TTFT-Ms"],
        )
    return InFlight(Origins(app, needs_keys=bool(options.api_keys)))


def _add_health(routes: FastAPI, readiness: Readiness) -> None:
    # HEAD is for load balancers; the server sends its answers without their body.
    @routes.head("/health", include_in_schema=False)
    @routes.get("/health")
    async def health() -> Response:
        """200 when a request would be answered now, else 503."""
        readiness.model()
        return JSONResponse({"status": "ok"})

    @routes.head("/ping", include_in_schema=False)
    @routes.get("/ping")
    async def ping() -> Response:
        """200 while the process answers, whatever the model is at."""
        return JSONResponse({})

    @routes.get("/version")
    async def version() -> Response:
        return JSONResponse({"version": __version__})

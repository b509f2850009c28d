# SPDX-License-Identifier: Apache-2.0
"""Routes for whoever runs the server or takes back what was asked: cancel, metrics, load, prefix cache."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace.api.http.origin import origin_of
from headrace.api.served_model import ServedModel
from headrace.api.service import Service
from headrace.core.errors import RequestError
from headrace.observe.engine_numbers import ServingFacts
from headrace.observe.page import CONTENT_TYPE, MetricsPage


def operation_routes(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/requests/{request_id:path}/cancel")
    async def cancel(request: Request, request_id: str) -> Response:
        """Also during a drain: it ends what runs."""
        if not service.calls.cancel(origin_of(request).owner, request_id):
            raise RequestError(
                f"No request with the id {request_id[:128]!r} is open. Send its X-Request-Id, its request_id "
                "or the id of its answer, before it is answered, with the API key that it was sent with",
                param="request_id",
                code="request_not_found",
                status=404,
            )
        return JSONResponse({"id": request_id, "object": "request.cancelled", "cancelled": True})

    @routes.get("/metrics")
    async def metrics() -> Response:
        """As long as there is a model, whatever it is at. Written beside the event loop: it takes some ms."""
        page = _page(service.readiness.loaded(), service)
        return Response(await asyncio.to_thread(page.text), media_type=CONTENT_TYPE)

    @routes.get("/load")
    async def load() -> Response:
        return JSONResponse({"server_load": service.calls.num_open})

    @routes.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> Response:
        service.readiness.model().engine.reset_prefix_cache()
        return JSONResponse({"success": True})

    return routes


def _page(model: ServedModel, service: Service) -> MetricsPage:
    facts = ServingFacts(
        model_name=model.names[0],
        max_model_len=model.max_model_len,
        block_size=model.engine.info.block_size,
        enable_prefix_caching=model.enable_prefix_caching,
    )
    return MetricsPage(
        facts=facts,
        engine=model.engine.stats(),
        steps=model.step_counts,
        answers=model.answer_counts,
        has_vllm_names=service.has_vllm_metrics,
    )

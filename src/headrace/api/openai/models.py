# SPDX-License-Identifier: Apache-2.0
"""GET /v1/models: what this server answers with, under each of its names."""

from __future__ import annotations

from fastapi import APIRouter

from headrace.api.readiness import Readiness
from headrace.api.served_model import ServedModel


def model_routes(readiness: Readiness) -> APIRouter:
    routes = APIRouter()

    @routes.get("/v1/models")
    async def models() -> dict[str, object]:
        model = readiness.model()
        return {"object": "list", "data": [_entry(model, name) for name in model.names]}

    @routes.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, object]:
        model = readiness.model()
        model.check_name(name)
        return _entry(model, name)

    return routes


def _entry(model: ServedModel, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": model.created_s,
        "owned_by": "headrace",
        "root": model.names[0],
        "parent": None,
        "max_model_len": model.max_model_len,
    }

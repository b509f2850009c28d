# SPDX-License-Identifier: Apache-2.0
"""Body schemas for /openapi.json. Routes read bodies themselves, within limits, so they tell FastAPI
nothing else about them."""

from __future__ import annotations

from pydantic import BaseModel


def body_schema(kind: type[BaseModel]) -> dict[str, object]:
    schema: object = kind.model_json_schema()
    assert isinstance(schema, dict)
    for name, inner in schema.pop("$defs", {}).items():
        schema = _inline(schema, name, inner)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _inline(value: object, name: str, inner: object) -> object:
    """`value` with `inner` in place of references to it: a route's schema has nowhere to keep them."""
    if isinstance(value, dict):
        if value.get("$ref") == f"#/$defs/{name}":
            return inner
        return {key: _inline(child, name, inner) for key, child in value.items()}
    if isinstance(value, list):
        return [_inline(child, name, inner) for child in value]
    return value

# SPDX-License-Identifier: Apache-2.0
"""Small JSON schemas as programs ask models for, each with what a user would say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class SchemaTask:
    name: str
    question: str
    schema: Json


def _object(properties: Json, required: Sequence[str] | None = None) -> Json:
    names = list(properties) if required is None else list(required)
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


_TEXT: Json = {"type": "string", "maxLength": 40}
_COUNT: Json = {"type": "integer", "minimum": 0, "maximum": 999}

TASKS = (
    SchemaTask(
        "person",
        "Make up a person who works at a museum.",
        _object(
            {
                "first_name": _TEXT,
                "last_name": _TEXT,
                "age": _COUNT,
                "email": _TEXT,
                "languages": {"type": "array", "items": _TEXT, "minItems": 2, "maxItems": 3},
            }
        ),
    ),
    SchemaTask(
        "order",
        "A customer orders two cups and a plate. Write the order down.",
        _object(
            {
                "order_id": _COUNT,
                "status": {"type": "string", "enum": ["open", "paid", "shipped", "cancelled"]},
                "items": {
                    "type": "array",
                    "minItems": 2,
                    "maxItems": 2,
                    "items": _object({"product": _TEXT, "quantity": _COUNT, "unit_price": _COUNT}),
                },
            }
        ),
    ),
    SchemaTask(
        "ticket",
        "The printer on the second floor eats paper. File a support ticket.",
        _object(
            {
                "title": _TEXT,
                "severity": {"type": "string", "enum": ["low", "medium", "high"]},
                "component": _TEXT,
                "needs_visit": {"type": "boolean"},
                "steps": {"type": "array", "items": _TEXT, "minItems": 2, "maxItems": 3},
            }
        ),
    ),
    SchemaTask(
        "weather",
        "Report the weather of a mild day in spring by the sea.",
        _object(
            {
                "city": _TEXT,
                "temperature_celsius": {"type": "integer", "minimum": -40, "maximum": 50},
                "condition": {"type": "string", "enum": ["sunny", "cloudy", "rain", "snow"]},
                "wind": _object({"speed_kmh": _COUNT, "direction": {"enum": ["N", "E", "S", "W"]}}),
                "humidity_percent": {"type": "integer", "minimum": 0, "maximum": 100},
            }
        ),
    ),
)

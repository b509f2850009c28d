# SPDX-License-Identifier: Apache-2.0
"""Request bodies as OpenAI-compatible servers take them: greedy and streamed."""

from __future__ import annotations

import json
from dataclasses import dataclass

from headrace.bench.schemas import SchemaTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What the server at hand takes."""

    model: str
    ignore_eos: bool = True
    stream_usage: bool = True

    @property
    def stream_fields(self) -> dict[str, object]:
        fields: dict[str, object] = {"model": self.model, "temperature": 0, "stream": True}
        if self.stream_usage:
            fields["stream_options"] = {"include_usage": True}
        return fields


def completion_body(dialect: Dialect, prompt: str, max_tokens: int) -> bytes:
    fields = {**dialect.stream_fields, "prompt": prompt, "max_tokens": max_tokens}
    if dialect.ignore_eos:
        fields["ignore_eos"] = True
    return json.dumps(fields).encode()


def schema_body(dialect: Dialect, task: SchemaTask, context: str, max_tokens: int) -> bytes:
    """The reply ends where the schema lets it."""
    schema = {"name": task.name, "schema": task.schema, "strict": True}
    fields = {
        **dialect.stream_fields,
        "messages": [{"role": "user", "content": f"{context}\n\n{task.question} Answer in JSON."}],
        "max_tokens": max_tokens,
        "response_format": {"type": "json_schema", "json_schema": schema},
    }
    return json.dumps(fields).encode()

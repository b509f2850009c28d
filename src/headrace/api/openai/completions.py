# SPDX-License-Identifier: Apache-2.0
"""POST /v1/completions: text or token ids go on as they are, without a template. Several prompts in one
call are answered side by side."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace.api.answers import gather
from headrace.api.http.body import read_json_object
from headrace.api.http.disconnect import until_disconnect
from headrace.api.http.event_stream import EventStream
from headrace.api.openai.call import Call, make_call
from headrace.api.openai.completion_answer import completion_answer, completion_chunks
from headrace.api.openai.completion_fields import CompletionFields, completion_params
from headrace.api.openai.fields import parse_fields
from headrace.api.openai.prompts import encode_prompts, parse_prompts
from headrace.api.openai.schema import body_schema
from headrace.api.readiness import Readiness
from headrace.api.served_model import ServedModel


def completion_routes(readiness: Readiness) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/completions", openapi_extra=body_schema(CompletionFields))
    async def completions(request: Request) -> Response:
        model = readiness.model()
        fields = parse_fields(CompletionFields, await read_json_object(request))
        call = await _call_of(fields, model)
        gains = call.start()
        if fields.stream:
            return EventStream(completion_chunks(call, fields, gains), gains.close)
        try:
            answers = await until_disconnect(request.receive, gather(gains, len(call.prompts) * call.n))
        finally:
            gains.close()
        return JSONResponse(completion_answer(call, fields, answers))

    return routes


async def _call_of(fields: CompletionFields, model: ServedModel) -> Call:
    """Everything that can be checked without the engine."""
    model.check_name(fields.model)
    params = completion_params(fields)
    given = parse_prompts(fields.prompt, model.max_model_len)
    prompts = await encode_prompts(given, model, add_special_tokens=fields.add_special_tokens is not False)
    return make_call("cmpl", fields, model, prompts, params)

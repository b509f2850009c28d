# SPDX-License-Identifier: Apache-2.0
"""POST /v1/completions: text or token ids go on as they are, without a template. Several prompts in one
call are answered side by side."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from headrace.api.openai.call import Call, check_num_choices, make_call
from headrace.api.openai.completion_answer import completion_answer, completion_chunks
from headrace.api.openai.completion_fields import CompletionFields, completion_params
from headrace.api.openai.prompts import encode_prompts, parse_prompts
from headrace.api.openai.respond import Surface, respond
from headrace.api.openai.schema import body_schema
from headrace.api.openai.terms import Terms
from headrace.api.served_model import ServedModel
from headrace.api.service import Service


def completion_routes(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/completions", openapi_extra=body_schema(CompletionFields))
    async def completions(request: Request) -> Response:
        return await respond(_TEXT, request, service)

    return routes


async def _call_of(fields: CompletionFields, model: ServedModel, terms: Terms) -> Call:
    model.check_name(fields.model)
    params = completion_params(fields)
    given = parse_prompts(fields.prompt, model.max_model_len)
    check_num_choices(len(given), fields, model)
    prompts = await encode_prompts(given, model, add_special_tokens=fields.add_special_tokens is not False)
    return make_call("cmpl", fields, model, prompts, params, terms)


_TEXT = Surface(
    fields=CompletionFields,
    whole_object="text_completion",
    chunk_object="text_completion",
    call_of=_call_of,
    whole=completion_answer,
    chunks=completion_chunks,
)

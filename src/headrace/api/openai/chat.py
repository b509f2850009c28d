# SPDX-License-Identifier: Apache-2.0
"""POST /v1/chat/completions. The way of a request begins here: body -> checked fields -> messages in the
model's template -> token ids -> the engine -> deltas of text -> one JSON answer or a stream of chunks."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from headrace.api.openai.call import Call, check_num_choices, make_call
from headrace.api.openai.chat_answer import chat_answer, chat_chunks
from headrace.api.openai.chat_fields import ChatFields, chat_params
from headrace.api.openai.chat_prompt import encode_chat
from headrace.api.openai.respond import Surface, respond
from headrace.api.openai.schema import body_schema
from headrace.api.openai.terms import Terms
from headrace.api.served_model import ServedModel
from headrace.api.service import Service
from headrace.core.errors import RequestError


def chat_routes(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/chat/completions", openapi_extra=body_schema(ChatFields))
    async def chat_completions(request: Request) -> Response:
        try:
            return await respond(_CHAT, request, service)
        except RequestError as error:
            # The engine speaks of a prompt; who chats sent messages.
            error.param = "messages" if error.param == "prompt" else error.param
            raise

    return routes


async def _call_of(fields: ChatFields, model: ServedModel, terms: Terms) -> Call:
    model.check_name(fields.model)
    params = chat_params(fields)
    check_num_choices(1, fields, model)
    prompt = await encode_chat(fields, model)
    return make_call("chatcmpl", fields, model, [prompt], params, terms)


_CHAT = Surface(
    fields=ChatFields,
    whole_object="chat.completion",
    chunk_object="chat.completion.chunk",
    call_of=_call_of,
    whole=chat_answer,
    chunks=chat_chunks,
)

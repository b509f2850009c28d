# SPDX-License-Identifier: Apache-2.0
"""POST /v1/chat/completions. The way of a request begins here: body -> checked fields -> messages in the
model's template -> token ids -> the engine -> deltas of text -> one JSON answer or a stream of chunks."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace.api.answers import gather
from headrace.api.http.body import read_json_object
from headrace.api.http.disconnect import until_disconnect
from headrace.api.http.event_stream import EventStream
from headrace.api.openai.call import Call, make_call
from headrace.api.openai.chat_answer import chat_answer, chat_chunks
from headrace.api.openai.chat_fields import ChatFields, chat_params
from headrace.api.openai.chat_prompt import encode_chat
from headrace.api.openai.fields import parse_fields
from headrace.api.openai.schema import body_schema
from headrace.api.readiness import Readiness
from headrace.api.served_model import ServedModel
from headrace.core.errors import RequestError


def chat_routes(readiness: Readiness) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/chat/completions", openapi_extra=body_schema(ChatFields))
    async def chat_completions(request: Request) -> Response:
        model = readiness.model()
        fields = parse_fields(ChatFields, await read_json_object(request))
        call = await _call_of(fields, model)
        try:
            gains = call.start()
        except RequestError as error:
            raise _about_messages(error) from None
        if fields.stream:
            return EventStream(chat_chunks(call, fields, gains), gains.close)
        try:
            answers = await until_disconnect(request.receive, gather(gains, call.n))
        finally:
            gains.close()
        return JSONResponse(chat_answer(call, fields, answers))

    return routes


async def _call_of(fields: ChatFields, model: ServedModel) -> Call:
    """Everything that can be checked without the engine."""
    model.check_name(fields.model)
    params = chat_params(fields)
    prompt = await encode_chat(fields, model)
    return make_call("chatcmpl", fields, model, [prompt], params)


def _about_messages(error: RequestError) -> RequestError:
    """The engine speaks of a prompt; who chats sent messages."""
    param = "messages" if error.param == "prompt" else error.param
    return RequestError(error.message, param=param, code=error.code, status=error.status)

# SPDX-License-Identifier: Apache-2.0
"""POST /tokenize and /detokenize, as vLLM has them: what a prompt or a chat becomes, without answering."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace.api.http.body import read_json_object
from headrace.api.openai.chat_fields import ChatFields
from headrace.api.openai.chat_prompt import encode_chat
from headrace.api.openai.fields import Fields, parse_fields
from headrace.api.openai.prompts import encode_prompts
from headrace.api.openai.schema import body_schema
from headrace.api.outputs import name_of
from headrace.api.readiness import Readiness
from headrace.api.served_model import ServedModel
from headrace.core.errors import RequestError


class TokenizeFields(Fields):
    """Either prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None  # of prompt
    return_token_strs: bool | None = None
    messages: Any = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeFields(Fields):
    model: str | None = None
    tokens: Annotated[list[int], Field(max_length=2**20)]


def tokenize_routes(readiness: Readiness) -> APIRouter:
    routes = APIRouter()

    @routes.post("/tokenize", openapi_extra=body_schema(TokenizeFields))
    async def tokenize(request: Request) -> Response:
        model = readiness.model()
        fields = parse_fields(TokenizeFields, await read_json_object(request))
        model.check_name(fields.model)
        ids = await _encode(fields, model)
        body: dict[str, object] = {"count": len(ids), "max_model_len": model.max_model_len, "tokens": ids}
        if fields.return_token_strs:
            body["token_strs"] = [name_of(model.tokenizer, token) for token in ids]
        return JSONResponse(body)

    @routes.post("/detokenize", openapi_extra=body_schema(DetokenizeFields))
    async def detokenize(request: Request) -> Response:
        model = readiness.model()
        fields = parse_fields(DetokenizeFields, await read_json_object(request))
        model.check_name(fields.model)
        for token in fields.tokens:
            if not 0 <= token < model.vocab_size:
                raise RequestError(
                    f"tokens holds {token}, but this model's ids are 0 to {model.vocab_size - 1}",
                    param="tokens",
                )
        return JSONResponse({"prompt": model.tokenizer.decode(fields.tokens, skip_special=False)})

    return routes


async def _encode(fields: TokenizeFields, model: ServedModel) -> tuple[int, ...]:
    if (fields.prompt is None) == (fields.messages is None):
        raise RequestError("Send either prompt or messages", param="prompt")
    if fields.prompt is not None:
        adds_special = fields.add_special_tokens is not False
        (prompt,) = await encode_prompts([fields.prompt], model, add_special_tokens=adds_special)
        return prompt.ids
    chat = ChatFields(
        messages=fields.messages,
        add_generation_prompt=fields.add_generation_prompt,
        continue_final_message=fields.continue_final_message,
        chat_template_kwargs=fields.chat_template_kwargs,
    )
    return (await encode_chat(chat, model)).ids

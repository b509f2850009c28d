# SPDX-License-Identifier: Apache-2.0
"""How every answering route answers: room, body, fields, prompt, engine, text, and the call closed however it
ends. What tells chat from completions is in a `Surface`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace.api.answers import Answer, gather
from headrace.api.async_stream import AsyncStream
from headrace.api.http.body import read_json_object
from headrace.api.http.disconnect import until_disconnect
from headrace.api.http.event_stream import Chunk, EventStream
from headrace.api.http.origin import origin_of
from headrace.api.open_calls import OpenCall
from headrace.api.openai.call import Call
from headrace.api.openai.fields import AnswerFields, parse_fields
from headrace.api.openai.terms import Terms, terms_of
from headrace.api.served_model import ServedModel
from headrace.api.service import Service

F = TypeVar("F", bound=AnswerFields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface(Generic[F]):
    fields: type[F]
    whole_object: str
    chunk_object: str
    call_of: Callable[[F, ServedModel, Terms], Awaitable[Call]]  # everything that needs no engine
    whole: Callable[[Call, F, Sequence[Answer]], Mapping[str, object]]
    chunks: Callable[[Call, F, AsyncStream], AsyncIterator[Sequence[Chunk]]]


async def respond(surface: Surface[F], request: Request, service: Service) -> Response:
    origin = origin_of(request)
    model = service.readiness.model()
    model.engine.check_room(1)  # a full queue says no before anything is read
    opened = service.calls.open(origin.owner, origin.request_id)
    try:
        fields = parse_fields(surface.fields, await read_json_object(request))
        if fields.request_id is not None:
            opened.claim_id(fields.request_id)
        call = await surface.call_of(fields, model, terms_of(fields, request.headers, origin))
        opened.claim_id(call.answer_id)
        gains = _begin(call, opened)
    except BaseException:
        opened.close()
        raise

    def close() -> None:
        gains.close()
        opened.close()

    if fields.stream:
        return EventStream(_with_closing(surface, call, fields, gains, service), close)
    try:
        answers = await until_disconnect(request.receive, gather(gains, call.num_choices))
    finally:
        close()
    body = {
        **call.head(surface.whole_object),
        **surface.whole(call, fields, answers),
        "usage": call.usage(gains),
        **_reports(call, fields, gains, service),
    }
    return JSONResponse(body)


def _begin(call: Call, opened: OpenCall) -> AsyncStream:
    generation = call.generation()
    opened.attach(generation)
    return AsyncStream(generation)


async def _with_closing(
    surface: Surface[F], call: Call, fields: F, gains: AsyncStream, service: Service
) -> AsyncIterator[Sequence[Chunk]]:
    """The choices' chunks, then one without choices that has what was asked for beside them."""
    async for chunks in surface.chunks(call, fields, gains):
        yield chunks
    if not (fields.includes_usage or fields.return_timings):
        return
    usage = {"usage": call.usage(gains)} if fields.includes_usage else {}
    yield [
        {
            **call.head(surface.chunk_object),
            "choices": [],
            **usage,
            **_reports(call, fields, gains, service),
        }
    ]


def _reports(call: Call, fields: AnswerFields, gains: AsyncStream, service: Service) -> Mapping[str, object]:
    return call.reports(
        gains,
        timings=bool(fields.return_timings),
        metrics=bool(fields.return_timings) or service.reports_metrics,
    )

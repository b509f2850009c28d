# SPDX-License-Identifier: Apache-2.0
"""A server that says what a test tells it to, in the pieces that the test wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

PAUSE_S = 0.002  # between pieces, so that they arrive one by one


@dataclass(frozen=True, slots=True)
class Answer:
    """Raw pieces of a body, sent chunked one by one. `breaks`: the connection ends after them."""

    pieces: Sequence[bytes]
    status: int = 200
    headers: Sequence[str] = ("Content-Type: text/event-stream",)
    breaks: bool = False
    gate: asyncio.Event | None = None  # waited for before the last piece


@dataclass(frozen=True, slots=True)
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, object] = field(default_factory=dict)


Reaction = Callable[[Asked], Answer | Awaitable[Answer]]


@dataclass(slots=True)
class TinyServer:
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    num_connections: int = 0


@asynccontextmanager
async def tiny_server(react: Reaction) -> AsyncIterator[TinyServer]:
    known = TinyServer()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        known.num_connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while await _exchange(known, react, reader, writer):
                pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    known.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield known
    finally:
        server.close()


async def _exchange(
    known: TinyServer, react: Reaction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, path, _ = head[0].split(" ")
    headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    asked = Asked(method, path, headers, json.loads(body) if body else {})
    known.asked.append(asked)
    reaction = react(asked)
    answer = reaction if isinstance(reaction, Answer) else await reaction
    lines = [f"HTTP/1.1 {answer.status} Said", *answer.headers, "Transfer-Encoding: chunked", "", ""]
    writer.write("\r\n".join(lines).encode())
    for number, piece in enumerate(answer.pieces):
        if answer.gate is not None and number == len(answer.pieces) - 1:
            await answer.gate.wait()
        writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        await writer.drain()
        await asyncio.sleep(PAUSE_S)
    if answer.breaks:
        return False
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


def event(value: object) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def text_event(text: str, reason: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": reason}]})


def usage_event(prompt: int, completion: int, cached: int | None = None) -> bytes:
    usage: dict[str, object] = {"prompt_tokens": prompt, "completion_tokens": completion}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return event({"choices": [], "usage": usage})


def json_answer(value: object, status: int = 200, *headers: str) -> Answer:
    return Answer([json.dumps(value).encode()], status, ("Content-Type: application/json", *headers))


def completions_server(asked: Asked) -> Answer:
    """One token a word, in vLLM's manner, with a BOS."""
    if asked.path == "/v1/models":
        return json_answer({"data": [{"id": "tiny", "max_model_len": 4096}]})
    num_prompt = 1 + len(str(asked.body.get("prompt", "")).split())
    if asked.path == "/tokenize":
        return json_answer({"count": num_prompt})
    if asked.path == "/v1/completions":
        num = int(str(asked.body["max_tokens"]))
        words = [text_event(f" w{number}") for number in range(num)]
        return Answer([*words, usage_event(num_prompt, num, cached=num_prompt // 2), event(b"[DONE]")])
    return json_answer({"error": {"message": "no such page"}}, 404)

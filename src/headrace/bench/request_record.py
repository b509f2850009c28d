# SPDX-License-Identifier: Apache-2.0
"""What became of one request, read from its reply when all is over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.bench.http_exchange import Reply
from headrace.bench.sse import events_of

OK = 200
TOO_MANY = 429


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """Times in seconds: `due_s` and `sent_s` since the load began, the rest since it was sent."""

    name: str
    group: str  # of a workload that has several kinds of requests, else ""
    due_s: float
    sent_s: float
    e2e_s: float  # to the end of the answer
    status: int  # of HTTP; 0: no answer
    error: str | None  # None: it was answered whole
    cancelled: bool  # given up by this side
    retry_after_s: float | None
    emissions_s: tuple[float, ...]  # when text came
    num_prompt: int  # as the server counts, else as meant
    num_output: int  # as the server counts, else how often text came
    num_cached: int | None  # of num_prompt; None: the server does not say
    finish_reason: str | None
    text: str

    @property
    def is_ok(self) -> bool:
        return self.error is None and not self.cancelled and bool(self.emissions_s)

    @property
    def ttft_s(self) -> float | None:
        return self.emissions_s[0] if self.emissions_s else None

    @property
    def tpot_s(self) -> float | None:
        """None for less than two tokens."""
        if not self.is_ok or self.num_output < 2:
            return None
        return (self.e2e_s - self.emissions_s[0]) / (self.num_output - 1)

    @property
    def itl_s(self) -> tuple[float, ...]:
        return tuple(b - a for a, b in zip(self.emissions_s, self.emissions_s[1:], strict=False))


@dataclass(frozen=True, slots=True)
class Call:
    """One request to make, all of it ready."""

    name: str
    path: str
    body: bytes
    num_prompt: int  # tokens, as meant
    group: str = ""
    at_s: float | None = None  # when, counted from the first; None: the pace says


@dataclass(slots=True)
class Sent:
    """A call on its way or back."""

    call: Call
    due_s: float  # perf_counter
    reply: Reply
    cancelled: bool = False


def record_of(sent: Sent, begin_s: float) -> RequestRecord:
    reply, call = sent.reply, sent.call
    streamed = _read(reply)
    usage = streamed.usage
    error = reply.error or streamed.error
    if error is None and reply.status != OK:
        error = _message_of(reply.body) or f"status {reply.status}"
    if error is None and not streamed.emissions_s:
        error = "the answer has no text"
    return RequestRecord(
        name=call.name,
        group=call.group,
        due_s=sent.due_s - begin_s,
        sent_s=reply.sent_s - begin_s,
        e2e_s=max(reply.end_s - reply.sent_s, 0.0),
        status=reply.status,
        error=None if sent.cancelled else error,
        cancelled=sent.cancelled,
        retry_after_s=_number(reply.headers.get("retry-after")),
        emissions_s=tuple(at_s - reply.sent_s for at_s in streamed.emissions_s),
        num_prompt=usage.get("prompt_tokens") or call.num_prompt,
        num_output=usage.get("completion_tokens") or len(streamed.emissions_s),
        num_cached=streamed.num_cached,
        finish_reason=streamed.finish_reason,
        text=streamed.text,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Streamed:
    emissions_s: tuple[float, ...] = ()  # perf_counter
    text: str = ""
    usage: Mapping[str, Any]
    num_cached: int | None = None
    finish_reason: str | None = None
    error: str | None = None


def _read(reply: Reply) -> _Streamed:
    if reply.status != OK:
        return _Streamed(usage={})
    emissions: list[float] = []
    texts: list[str] = []
    usage: Mapping[str, Any] = {}
    timings: Mapping[str, Any] = {}
    reason: str | None = None
    error: str | None = None
    for at_s, data in events_of(reply.pieces):
        if data == b"[DONE]":
            break
        try:
            chunk = json.loads(data)
        except ValueError:
            chunk = None
        if not isinstance(chunk, dict):
            error = f"an event is no JSON object: {data[:80]!r}"
            break
        if chunk.get("error"):
            error = _message_of(data) or "the stream told of an error"
            break
        usage = chunk.get("usage") or usage
        timings = chunk.get("timings") or timings  # llama-server's own
        for choice in chunk.get("choices") or ():
            reason = choice.get("finish_reason") or reason
            delta = choice.get("delta") or choice
            piece = delta.get("text") or delta.get("content") or delta.get("reasoning_content") or ""
            if piece:
                emissions.append(at_s)
                texts.append(piece)
    details = usage.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens", timings.get("cache_n"))
    return _Streamed(
        emissions_s=tuple(emissions),
        text="".join(texts),
        usage=usage,
        num_cached=cached if isinstance(cached, int) else None,
        finish_reason=reason,
        error=error,
    )


def _message_of(body: bytes) -> str | None:
    """An error's message, in OpenAI's form or whatever text there is."""
    try:
        error = json.loads(body).get("error", body.decode())
        return str(error["message"] if isinstance(error, dict) else error)[:300]
    except (ValueError, AttributeError, KeyError):
        return body.decode(errors="replace").strip()[:300] or None


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None  # a date, which says nothing that is counted here

# SPDX-License-Identifier: Apache-2.0
"""The named workloads: which requests, how long, how many at once. The same seed gives the same text."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from headrace.bench.call_body import Dialect, completion_body, schema_body
from headrace.bench.prose import words_of
from headrace.bench.request_record import Call
from headrace.bench.schemas import TASKS
from headrace.bench.token_ruler import TokenRuler

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"

IDLE_PROMPT = 520  # tokens
UNIQUE_PROMPT = 270
SHARED_PROMPT, OWN_PROMPT = 970, 55
SCHEMA_CONTEXT_WORDS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a workload is made from."""

    dialect: Dialect
    ruler: TokenRuler
    seed: int
    num_requests: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Calls to measure, and calls before them that do not count, one after another."""

    calls: tuple[Call, ...]
    warming: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A workload's defaults, and how it is made."""

    what: str
    num_requests: int
    concurrency: int
    output_tokens: int
    make: Callable[[Draft], Awaitable[Workload]]


async def idle(draft: Draft) -> Workload:
    return Workload(await _unlike(draft, "idle", IDLE_PROMPT))


async def unique(draft: Draft) -> Workload:
    return Workload(await _unlike(draft, "unique", UNIQUE_PROMPT))


async def shared(draft: Draft) -> Workload:
    """The shared part alone, once, is what warms it."""
    begin = await draft.ruler.fit((), SHARED_PROMPT, words_of(draft.seed, "shared"))
    calls = [
        await _call(draft, f"shared-{number}", SHARED_PROMPT + OWN_PROMPT, begin)
        for number in range(draft.num_requests)
    ]
    body = completion_body(draft.dialect, " ".join(begin), 1)
    return Workload(tuple(calls), (Call("shared-warm", COMPLETIONS, body, SHARED_PROMPT),))


async def schema(draft: Draft) -> Workload:
    calls = []
    for number in range(draft.num_requests):
        words = words_of(draft.seed, "schema", number)
        context = " ".join(next(words) for _ in range(SCHEMA_CONTEXT_WORDS))
        body = schema_body(draft.dialect, TASKS[number % len(TASKS)], context, draft.output_tokens)
        calls.append(Call(f"schema-{number}", CHAT, body, num_prompt=0))
    return Workload(tuple(calls))


NAMED = {
    "idle": Named(
        what=f"{IDLE_PROMPT}-token prompts, one at a time",
        num_requests=8,
        concurrency=1,
        output_tokens=64,
        make=idle,
    ),
    "unique": Named(
        what=f"{UNIQUE_PROMPT}-token prompts that have nothing in common",
        num_requests=32,
        concurrency=16,
        output_tokens=64,
        make=unique,
    ),
    "shared": Named(
        what=f"prompts of {SHARED_PROMPT} shared and {OWN_PROMPT} own tokens, the shared part warm",
        num_requests=32,
        concurrency=16,
        output_tokens=64,
        make=shared,
    ),
    "schema": Named(
        what="chat replies bound to a JSON schema",
        num_requests=16,
        concurrency=8,
        output_tokens=256,  # at most: a reply ends where its schema lets it
        make=schema,
    ),
}


async def completion_call(draft: Draft, name: str, num_prompt: int, group: str = "") -> Call:
    """A prompt like no other."""
    return await _call(draft, name, num_prompt, (), group)


async def _unlike(draft: Draft, name: str, num_prompt: int) -> tuple[Call, ...]:
    return tuple(
        [await completion_call(draft, f"{name}-{number}", num_prompt) for number in range(draft.num_requests)]
    )


async def _call(draft: Draft, name: str, num_prompt: int, begin: Sequence[str], group: str = "") -> Call:
    words = await draft.ruler.fit(begin, num_prompt, words_of(draft.seed, name))
    body = completion_body(draft.dialect, " ".join(words), draft.output_tokens)
    return Call(name, COMPLETIONS, body, num_prompt, group)


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True

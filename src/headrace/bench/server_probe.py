# SPDX-License-Identifier: Apache-2.0
"""What the server at hand is: its model's name, the fields it takes, and how it counts tokens."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any

from headrace.bench.call_body import Dialect, completion_body
from headrace.bench.http_exchange import HttpClient, Reply
from headrace.bench.prose import words_of
from headrace.bench.request_record import OK, Call, Sent, record_of
from headrace.bench.token_ruler import AverageRuler, CountingRuler, TokenRuler
from headrace.core.errors import HeadraceError

PROBE_WORDS = "The old house near the river"
PROBE_TOKENS = 4
REFUSED = (400, 422)
SHORT, LONG = 64, 256  # words of the two texts that an average is made from


@dataclass(frozen=True, slots=True)
class Server:
    dialect: Dialect
    max_model_len: int | None  # None: it does not say


async def find_server(client: HttpClient, url: str, model: str | None) -> Server:
    """Ask for the model's name and answer one short prompt, which also warms the server up. HeadraceError
    when it does not answer as OpenAI's would."""
    listed = await client.get("/v1/models")
    if listed.status == 0:
        raise HeadraceError(f"no answer from {url}: {listed.error}; is the server up?")
    entries = _json(listed).get("data") or [{}]
    name = model or entries[0].get("id")
    if not name:
        raise HeadraceError(f"{url}/v1/models names no model ({_short(listed)}); give one with --model")
    length = next((e.get("max_model_len") for e in entries if e.get("id") == name), None)
    return Server(await _dialect(client, url, name), length)


async def _dialect(client: HttpClient, url: str, model: str) -> Dialect:
    """The first of these that the server takes."""
    for ignores, usage in itertools.product((True, False), repeat=2):
        dialect = Dialect(model=model, ignore_eos=ignores, stream_usage=usage)
        reply = await client.post("/v1/completions", completion_body(dialect, PROBE_WORDS, PROBE_TOKENS))
        if reply.status not in REFUSED:
            break
    call = Call("probe", "/v1/completions", b"", 0)
    if (error := record_of(Sent(call, 0.0, reply), 0.0).error) and reply.error is None and reply.status != OK:
        raise HeadraceError(f"{url}/v1/completions refuses a short prompt with {reply.status}: {error}")
    if reply.error is not None:
        raise HeadraceError(f"{url}/v1/completions: {reply.error}")
    return dialect


async def server_ruler(client: HttpClient, dialect: Dialect) -> TokenRuler:
    """By the server's /tokenize where it has one, in vLLM's form or llama-server's, else by usage."""

    async def count_vllm(text: str) -> int:
        return int(_json(await client.post("/tokenize", _body(model=dialect.model, prompt=text)))["count"])

    async def count_llama(text: str) -> int:
        reply = await client.post("/tokenize", _body(content=text, add_special=True))
        return len(_json(reply)["tokens"])

    for count in (count_vllm, count_llama):
        try:
            if await count(PROBE_WORDS) > 0:
                return CountingRuler(count, "the server's /tokenize")
        except (KeyError, TypeError, ValueError):
            continue
    return await _average_ruler(client, dialect)


async def _average_ruler(client: HttpClient, dialect: Dialect) -> TokenRuler:
    async def count(num_words: int) -> int:
        text = " ".join(itertools.islice(words_of("calibration", num_words), num_words))
        body = _body(model=dialect.model, prompt=text, max_tokens=1, temperature=0)
        reply = await client.post("/v1/completions", body)
        try:
            return int(_json(reply)["usage"]["prompt_tokens"])
        except (KeyError, TypeError) as error:
            raise HeadraceError(
                f"the server has no /tokenize and its answer no usage.prompt_tokens ({_short(reply)}); "
                "give a model with --tokenizer to count with"
            ) from error

    few, many = await count(SHORT), await count(LONG)
    per_word = max((many - few) / (LONG - SHORT), 0.1)
    return AverageRuler(per_word, few - SHORT * per_word, "the server's usage, on average")


def _body(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def _json(reply: Reply) -> dict[str, Any]:
    try:
        value = json.loads(reply.body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _short(reply: Reply) -> str:
    return f"status {reply.status}: {reply.body[:120].decode(errors='replace')}"

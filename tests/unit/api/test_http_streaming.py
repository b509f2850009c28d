# SPDX-License-Identifier: Apache-2.0
"""Streams against whole answers, over real HTTP: framing, split characters, stop strings, usage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.core.config import EngineConfig
from unit.api.byte_tokenizer import END, VOCAB_SIZE, byte_tokenizer, piece, spell
from unit.api.live_server import LiveServer, parse_events, running
from unit.api.reciting_backend import RecitingBackend

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = [{"role": "user", "content": "recite"}]
HARD_TEXT = "naïve 🫠🥹 龜 🇳🇴 👩‍👩‍👧‍👦 end"


@pytest.fixture(scope="module")
def backend() -> RecitingBackend:
    return RecitingBackend([], end=END, vocab_size=VOCAB_SIZE)


@pytest.fixture(scope="module")
def server(backend: RecitingBackend) -> Iterator[LiveServer]:
    # Usage tells what the cache held, and here every call is made twice.
    config = EngineConfig(enable_prefix_caching=False)
    with running(backend, byte_tokenizer(), config=config) as server:
        yield server


def both(server: LiveServer, **fields: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The same chat whole and streamed."""
    body = {"messages": MESSAGES, **fields}
    whole = server.post(CHAT, body)
    assert whole.status_code == 200, whole.text
    return whole.json(), server.stream(CHAT, {**body, "stream_options": {"include_usage": True}})


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def reasons_of(chunks: list[dict[str, Any]], index: int = 0) -> list[str]:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return [choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None]


def test_split_characters_leave_whole(server: LiveServer, backend: RecitingBackend) -> None:
    """A1"""
    backend.script = spell(HARD_TEXT)
    whole, chunks = both(server)
    assert whole["choices"][0]["message"]["content"] == HARD_TEXT
    assert text_of(chunks) == HARD_TEXT
    deltas = [choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]]
    assert "\ufffd" not in "".join(deltas)


def test_framing(server: LiveServer, backend: RecitingBackend) -> None:
    """A7; `parse_events` asserts the raw frames."""
    backend.script = spell("Hello")
    response = server.post(CHAT, {"messages": MESSAGES, "stream": True, "n": 2})
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = parse_events(response.content)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    for name in ("id", "created", "model"):
        assert len({chunk[name] for chunk in chunks}) == 1
    for index in (0, 1):
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert mine[0]["delta"]["role"] == "assistant"
        assert not any("role" in choice["delta"] for choice in mine[1:])
        assert reasons_of(chunks, index) == ["stop"]
        assert mine[-1]["finish_reason"] == "stop"
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("tokens", ["bytes", "pieces"])
def test_stop_string_across_tokens(server: LiveServer, backend: RecitingBackend, tokens: str) -> None:
    """A2"""
    alphabet = "ABCDEFGHIJKLMNOP"
    backend.script = spell(alphabet)
    if tokens == "pieces":
        backend.script = [*spell("ABCDEFG"), piece("HIJ"), piece("KLMN"), *spell("OP")]
    for stop, kept in (("HIJKLMN", "ABCDEFG"), ("GH", "ABCDEF"), ("JK", "ABCDEFGHI")):
        whole, chunks = both(server, stop=[stop])
        choice = whole["choices"][0]
        assert choice["message"]["content"] == kept
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
        assert text_of(chunks) == kept
        assert reasons_of(chunks) == ["stop"]
        assert chunks[-1]["usage"] == whole["usage"]


def test_nothing_after_a_stop(server: LiveServer, backend: RecitingBackend) -> None:
    """A3"""
    backend.script = [*spell("Mon Tue "), piece("Wed"), piece("nesday"), *spell(" Thu")]
    whole, chunks = both(server, stop=["Wednesday"])
    assert whole["choices"][0]["message"]["content"] == text_of(chunks) == "Mon Tue "
    assert whole["usage"]["completion_tokens"] == 10, "eight letters and the two pieces of the match"
    whole, chunks = both(server, stop=["Wednesday"], include_stop_str_in_output=True)
    assert whole["choices"][0]["message"]["content"] == text_of(chunks) == "Mon Tue Wednesday"
    assert chunks[-1]["usage"] == whole["usage"]


@pytest.mark.parametrize(
    ("stop", "kept"),
    [
        ("END", "xxabcx"),
        (["ab", "abc", "b"], "xx"),
        (["b", "abc"], "xx"),
        (["c", "never"], "xxab"),
        (["1", "2", "3", "4", "abcx"], "xx"),
        ([], "xxabcxENDy"),
        (None, "xxabcxENDy"),
    ],
)
def test_lists_of_stops(server: LiveServer, backend: RecitingBackend, stop: Any, kept: str) -> None:
    """A4: the match that begins first wins."""
    backend.script = spell("xxabcxENDy")
    whole, chunks = both(server, stop=stop)
    assert whole["choices"][0]["message"]["content"] == text_of(chunks) == kept


@pytest.mark.parametrize("ending", ["end token", "max_tokens"])
@pytest.mark.parametrize("shown", [False, True])
def test_match_that_waited_for_a_longer_one(
    server: LiveServer, backend: RecitingBackend, ending: str, shown: bool
) -> None:
    """A2 to A4: "b" is there, "abxy" would begin before it; the answer ends before that is known."""
    backend.script = spell("xabx" if ending == "end token" else "xabxzzz")
    limit = {"max_tokens": 4} if ending == "max_tokens" else {}
    whole, chunks = both(server, stop=["abxy", "b"], include_stop_str_in_output=shown, **limit)
    choice = whole["choices"][0]
    kept = "xab" if shown else "xa"
    assert choice["message"]["content"] == text_of(chunks) == kept
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "b")
    assert reasons_of(chunks) == ["stop"]
    assert chunks[-1]["usage"] == whole["usage"]


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], ["x"] * 17, [1], 7])
def test_bad_stops(server: LiveServer, stop: Any) -> None:
    """A4"""
    response = server.post(CHAT, {"messages": MESSAGES, "stop": stop})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("stop")


def test_stop_token_ids(server: LiveServer, backend: RecitingBackend) -> None:
    backend.script = [*spell("one"), piece(" the"), *spell("two")]
    whole, chunks = both(server, stop_token_ids=[piece(" the")])
    choice = whole["choices"][0]
    assert choice["message"]["content"] == text_of(chunks) == "one"
    assert choice["stop_reason"] == piece(" the")
    whole, chunks = both(server, stop_token_ids=[piece(" the")], include_stop_str_in_output=True)
    assert whole["choices"][0]["message"]["content"] == text_of(chunks) == "one the"
    assert whole["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_p": -1}, "top_p"),
        ({"max_tokens": 100_000}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, "messages"),
    ],
)
def test_invalid_stream_is_plain_json(server: LiveServer, fields: dict[str, Any], param: str) -> None:
    """A5"""
    response = server.post(CHAT, {"messages": MESSAGES, "stream": True, **fields})
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    assert response.json()["error"]["param"] == param


def test_failure_in_a_stream() -> None:
    """A5: one event with an error, no finish reason, no [DONE]."""
    backend = RecitingBackend(spell("Hello"), end=END, vocab_size=VOCAB_SIZE, fail_at=3)
    with running(backend, byte_tokenizer()) as server:
        body = server.post(CHAT, {"messages": MESSAGES, "stream": True}).content
        *events, last, empty = body.split(b"\n\n")
        assert empty == b""
        assert last.startswith(b'data: {"error":')
        assert b"[DONE]" not in body
        assert not any(b'"finish_reason":"' in event for event in events)
        whole = server.post(CHAT, {"messages": MESSAGES})
        assert whole.status_code == 500
        assert whole.json()["error"]["type"] == "server_error"


def test_usage_chunk(server: LiveServer, backend: RecitingBackend) -> None:
    """B1, B2"""
    backend.script = spell("Hello")
    for fields in ({}, {"n": 2}, {"stop": "lo"}, {"max_tokens": 3}):
        whole, chunks = both(server, **fields)
        assert [chunk["choices"] == [] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
        usage = chunks[-1]["usage"]
        assert usage == whole["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    whole, _ = both(server, n=2)
    assert whole["usage"]["completion_tokens"] == 12, "two times five letters and the end token"
    assert whole["usage"]["prompt_tokens"] == both(server)[0]["usage"]["prompt_tokens"]


def test_usage_chunk_of_completions(server: LiveServer, backend: RecitingBackend) -> None:
    """B1"""
    backend.script = spell("Hello")
    body = {"prompt": ["one", "three"], "n": 2}
    whole = server.post(TEXT, body).json()
    chunks = server.stream(TEXT, {**body, "stream_options": {"include_usage": True}})
    assert chunks[-1] == {
        **{name: chunks[0][name] for name in ("id", "object", "created", "model")},
        "choices": [],
        "usage": whole["usage"],
    }
    assert whole["usage"]["prompt_tokens"] == 8


def test_continuous_usage(server: LiveServer, backend: RecitingBackend) -> None:
    backend.script = spell("Hello")
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = server.stream(CHAT, {"messages": MESSAGES, "stream_options": options})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, 6)


def test_chat_logprobs_bytes_are_the_content(server: LiveServer, backend: RecitingBackend) -> None:
    """B3"""
    backend.script = spell(HARD_TEXT)
    for fields in ({}, {"stop": "end"}, {"stop": "🫠🥹"}, {"stop": "\U0001f1f4"}, {"max_tokens": 5}):
        whole, chunks = both(server, logprobs=True, top_logprobs=2, **fields)
        choice = whole["choices"][0]
        content = choice["logprobs"]["content"]
        joined = b"".join(bytes(token["bytes"]) for token in content)
        assert joined.decode() == choice["message"]["content"]
        assert all(len(token["top_logprobs"]) == 2 for token in content)
        streamed = [c["logprobs"]["content"] for chunk in chunks for c in chunk["choices"] if c["logprobs"]]
        assert [token for part in streamed for token in part] == content


def test_finish_reason_length(server: LiveServer, backend: RecitingBackend) -> None:
    """B7"""
    backend.script = spell("x" * 30)
    whole, chunks = both(server, max_tokens=20)
    assert whole["choices"][0]["finish_reason"] == "length"
    assert reasons_of(chunks) == ["length"]
    text = server.post(TEXT, {"prompt": "a", "max_tokens": 20}).json()
    assert text["choices"][0]["finish_reason"] == "length"
    streamed = server.stream(TEXT, {"prompt": "a", "max_tokens": 20})
    assert streamed[-1]["choices"][0]["finish_reason"] == "length"

# SPDX-License-Identifier: Apache-2.0
"""What is refused, how, and that the server is well afterwards."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from headrace.runner.backends.fake import FakeBackend
from unit.api.byte_tokenizer import VOCAB_SIZE, byte_tokenizer, piece
from unit.api.live_server import LiveServer, running

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    backend = FakeBackend(vocab_size=VOCAB_SIZE + 7, max_model_len=256, num_blocks=256)
    with running(backend, byte_tokenizer()) as server:
        yield server


def check_refusal(response: httpx.Response, param: str | None = None, status: int = 400) -> dict[str, Any]:
    """G11: status, content type and body agree."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.json().keys() == {"error"}
    error: dict[str, Any] = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    assert error["message"]
    if param is not None:
        assert error["param"] == param
    return error


def check_well(server: LiveServer) -> None:
    assert server.http.get("/health").status_code == 200
    assert server.post(TEXT, {"prompt": "a", "max_tokens": 2}).status_code == 200


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("temperature", "1e6"),
        ("temperature", "-0.1"),
        ("temperature", '"1"'),
        ("temperature", "1e400"),
        ("temperature", "true"),
        ("temperature", "[1]"),
        ("top_p", "-0.5"),
        ("top_p", "1.1"),
        ("top_k", "-7"),
        ("top_k", "1.5"),
        ("top_k", "1" + "0" * 30),
        ("min_p", "2"),
        ("repetition_penalty", "0"),
        ("presence_penalty", "2.5"),
        ("frequency_penalty", "-3"),
        ("seed", "1.5"),
        ("seed", '"7"'),
        ("seed", str(2**64)),
        ("n", "0"),
        ("n", "129"),
        ("n", "1000000000000"),
        ("min_tokens", "-1"),
        ("stream", '"yes"'),
        ("stop_token_ids", "[-1]"),
        ("stop_token_ids", str([1] * 1000)),
        ("logit_bias", '{"999999999": 5}'),
        ("logit_bias", '{"-1": 5}'),
        ("logit_bias", '{"abc": 5}'),
        ("logit_bias", '{"5": 1e9}'),
        ("logit_bias", json.dumps({str(i): 1 for i in range(301)})),
        ("logit_bias", json.dumps({str(i): 1 for i in range(100_000)})),
        ("stop", json.dumps(["x"] * 500_000)),
        ("stream_options", '{"include_usage": true}'),
        ("priority", "1.5"),
        ("priority", '"1"'),
        ("priority", "true"),
        ("priority", str(2**40)),
        ("cache_salt", '""'),
        ("cache_salt", "7"),
        ("cache_salt", json.dumps("x" * 257)),
        ("deterministic", '"yes"'),
        ("deterministic", "1"),
        ("return_timings", "1"),
        ("slo_ttft_ms", "0"),
        ("slo_ttft_ms", "-5"),
        ("slo_ttft_ms", '"100"'),
        ("slo_ttft_ms", "1e-324"),
        ("slo_ttft_ms", "1e999"),
        ("request_id", '""'),
        ("request_id", json.dumps("x" * 129)),
    ],
)
def test_absurd_values(server: LiveServer, path: str, name: str, raw: str) -> None:
    """C9, C10, G7"""
    body = f'{{"prompt": "a", "{name}": {raw}}}'
    if path == CHAT:
        body = f'{{"messages": {json.dumps(MESSAGES)}, "{name}": {raw}}}'
    response = server.http.post(path, content=body, headers={"Content-Type": "application/json"})
    error = check_refusal(response)
    assert (error["param"] or error["message"]).startswith(name)
    check_well(server)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud83d"}',
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": ' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"a": ' * 100_000,
        gzip.compress(b'{"prompt": "a"}'),
    ],
)
def test_bad_bodies(server: LiveServer, body: bytes) -> None:
    """G8"""
    check_refusal(server.http.post(TEXT, content=body, headers={"Content-Type": "application/json"}))
    check_well(server)


def test_other_content_types(server: LiveServer) -> None:
    """G8"""
    check_refusal(server.http.post(TEXT, data={"prompt": "a"}))
    check_refusal(
        server.http.post(
            TEXT,
            content=gzip.compress(b"{}"),
            headers={"Content-Type": "application/json", "Content-Encoding": "gzip"},
        )
    )


def test_body_too_large(server: LiveServer) -> None:
    """G8"""
    body = b'{"prompt": "' + b"x" * (17 * 2**20) + b'"}'
    headers = {"Content-Type": "application/json"}
    check_refusal(server.http.post(TEXT, content=body, headers=headers), status=413)
    pieces = (body[i : i + 2**20] for i in range(0, len(body), 2**20))  # without a length
    check_refusal(server.http.post(TEXT, content=pieces, headers=headers), status=413)
    check_well(server)


def test_unknown_routes_and_methods(server: LiveServer) -> None:
    """G11"""
    check_refusal(server.http.get("/v1/nothing"), status=404)
    check_refusal(server.http.get(CHAT), status=405)
    assert server.http.get(CHAT).headers["allow"] == "POST"
    check_refusal(server.http.get("/v1/models/other"), param="model", status=404)
    check_refusal(server.post(CHAT, {"model": "other", "messages": MESSAGES}), param="model", status=404)


def test_names_of_the_model(server: LiveServer) -> None:
    for name in ("tiny", "also-tiny", None):
        body = server.post(TEXT, {"model": name, "prompt": "a", "max_tokens": 1}).json()
        assert body["model"] == "tiny"
    assert [model["id"] for model in server.http.get("/v1/models").json()["data"]] == ["tiny", "also-tiny"]
    assert server.http.get("/v1/models/also-tiny").json()["id"] == "also-tiny"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("no_such_field", None),
        ("temprature", 1),
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
        ("structured_outputs", {"regex": "a"}),
        ("guided_json", {}),
        ("guided_regex", "a"),
        ("audio", {"voice": "x"}),
        ("modalities", ["text", "audio"]),
        ("reasoning_effort", "high"),
        ("store", True),
        ("use_beam_search", True),
        ("best_of", 2),
        ("chat_template", "x"),
        ("truncate_prompt_tokens", 5),
        ("lora_request", {}),
        ("max_tokens_", 1),
    ],
)
def test_unserved_fields_are_refused_by_name(server: LiveServer, name: str, value: Any) -> None:
    for path, body in ((CHAT, {"messages": MESSAGES}), (TEXT, {"prompt": "a"})):
        error = check_refusal(server.post(path, {**body, name: value}), param=name)
        assert name in error["message"]
        assert "None" not in error["message"], "what would work, in JSON's words"


def test_harmless_fields_are_taken(server: LiveServer) -> None:
    fields = {
        "user": "u",
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "store": False,
        "parallel_tool_calls": True,
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "guided_json": None,
        "stop": None,
        "temperature": None,
        "logit_bias": None,
        "max_completion_tokens": 2,
    }
    response = server.post(CHAT, {"messages": MESSAGES, **fields})
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"top_p": 0},
        {"top_p": 0.0001},
        {"top_p": 1},
        {"top_p": 1.0},
        {"top_k": 0},
        {"top_k": -1},
        {"min_p": 0},
        {"min_p": 1},
        {"presence_penalty": -2},
        {"frequency_penalty": 2},
        {"temperature": 0},
        {"temperature": 2},
        {"seed": 0},
        {"seed": -5},
        {"seed": 2**63},
        {"seed": 2**64 - 1, "n": 3},
    ],
)
def test_edges_that_are_fine(server: LiveServer, fields: dict[str, Any]) -> None:
    """C7"""
    response = server.post(CHAT, {"messages": MESSAGES, "max_tokens": 2, **fields})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_seeds(server: LiveServer, path: str) -> None:
    """C2, C4"""

    def texts(**fields: Any) -> list[str]:
        body = {"messages": MESSAGES} if path == CHAT else {"prompt": "hi"}
        response = server.post(path, {**body, "max_tokens": 12, "return_token_ids": True, **fields}).json()
        return [str(choice["token_ids"]) for choice in response["choices"]]

    assert texts(seed=1) == texts(seed=1)
    assert texts(seed=1) != texts(seed=2)
    assert len({texts()[0] for _ in range(5)}) == 5
    assert texts(seed=-1) == texts(seed=2**64 - 1), "negative seeds wrap"
    four = texts(seed=7, n=4)
    assert len(set(four)) == 4
    assert four == texts(seed=7, n=4)
    assert four[:1] == texts(seed=7)
    wrapped = texts(seed=-2, n=4)
    assert wrapped[2:] == texts(seed=0, n=2), "answer k draws with seed + k"


def test_logit_bias_forces_a_token(server: LiveServer) -> None:
    """C10"""
    body = {"messages": MESSAGES, "max_tokens": 3, "n": 2, "logit_bias": {str(piece("ab")): 100}}
    choices = server.post(CHAT, body).json()["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["ababab"] * 2
    chunks = server.stream(CHAT, body)
    streamed = [choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]]
    assert "".join(streamed) == "ab" * 6


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_content_in_parts(server: LiveServer, role: str) -> None:
    """F7"""

    def num_prompt(content: Any) -> int:
        message = {"role": role, "content": content}
        body = {"messages": [message, *MESSAGES], "max_tokens": 1}
        response = server.post(CHAT, body)
        assert response.status_code == 200, response.text
        count: int = response.json()["usage"]["prompt_tokens"]
        return count

    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert num_prompt(parts) == num_prompt("one two")
    assert num_prompt([]) == num_prompt("")


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        ([1], "messages[0]"),
        ([{"role": "boss", "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [5]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "nope"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/"}}]}],
            "messages[0].content[0].type",
        ),
        ([*MESSAGES, {"role": "assistant", "content": "x", "tool_calls": [{}]}], "messages[1].tool_calls"),
        ([*MESSAGES, {"role": "assistant", "content": "x", "audio": {"id": "a"}}], "messages[1].audio"),
        ([{"role": "user", "content": "x", "images": ["y"]}], "messages[0].images"),
    ],
)
def test_bad_messages(server: LiveServer, messages: Any, place: str) -> None:
    """F7, G5"""
    for stream in (False, True):
        error = check_refusal(server.post(CHAT, {"messages": messages, "stream": stream}), param="messages")
        assert error["message"].startswith(place)
    check_well(server)


def test_what_sdks_send_back(server: LiveServer) -> None:
    answer = {"role": "assistant", "content": "x", "refusal": None, "annotations": [], "tool_calls": None}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c", "content": "5"}
    for messages in ([answer], [called, result]):
        body = {"messages": [*MESSAGES, *messages, *MESSAGES], "max_tokens": 1}
        response = server.post(CHAT, body)
        assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 2}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"min_tokens": 5, "max_tokens": 2}, "min_tokens"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"stream": True, "stream_options": {"include_use": True}}, "stream_options.include_use"),
    ],
)
def test_fields_that_do_not_fit_together(server: LiveServer, fields: dict[str, Any], param: str) -> None:
    check_refusal(server.post(CHAT, {"messages": MESSAGES, **fields}), param=param)


def test_newer_name_of_max_tokens_wins(server: LiveServer) -> None:
    """G4"""
    bias = {"logit_bias": {"97": 100}}
    for fields in ({"max_completion_tokens": 3}, {"max_completion_tokens": 3, "max_tokens": 9}):
        body = server.post(CHAT, {"messages": MESSAGES, **bias, **fields}).json()
        assert body["usage"]["completion_tokens"] == 3


def test_request_that_stops_midway(server: LiveServer) -> None:
    """A body that never comes holds up nobody."""
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
    )
    connection = server.raw(head.encode())
    check_well(server)
    connection.shutdown(socket.SHUT_RDWR)
    connection.close()
    check_well(server)

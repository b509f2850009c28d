# SPDX-License-Identifier: Apache-2.0
"""The real openai package as a client: it must need no special case."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from unit.api.byte_tokenizer import END, VOCAB_SIZE, byte_tokenizer, spell
from unit.api.live_server import LiveServer, running
from unit.api.reciting_backend import RecitingBackend


@pytest.fixture(scope="module")
def backend() -> RecitingBackend:
    return RecitingBackend(spell("Hello 🫠!"), end=END, vocab_size=VOCAB_SIZE)


@pytest.fixture(scope="module")
def server(backend: RecitingBackend) -> Iterator[LiveServer]:
    with running(backend, byte_tokenizer()) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: LiveServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hi"}],
        logprobs=True,
        top_logprobs=1,
        extra_body={"top_k": 5, "repetition_penalty": 1.1},
    )
    assert answer.choices[0].message.content == "Hello 🫠!"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    assert answer.choices[0].logprobs.content[0].token == "H"


def test_answer_goes_back_as_a_message(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}])
    second = client.chat.completions.create(
        model="tiny",
        messages=[
            {"role": "user", "content": "hi"},
            first.choices[0].message.model_dump(),  # type: ignore[list-item]
            {"role": "user", "content": "more"},
        ],
    )
    assert second.choices[0].message.content == "Hello 🫠!"


def test_chat_stream(client: openai.OpenAI) -> None:
    """A7"""
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == "Hello 🫠!"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == chunks[-1].usage.prompt_tokens + 12


def test_chat_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="tiny", messages=[{"role": "user", "content": "hi"}], n=2
    ) as stream:
        final = stream.get_final_completion()
    assert [choice.message.content for choice in final.choices] == ["Hello 🫠!"] * 2


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt=["a", "b"], logprobs=1, echo=True)
    assert [choice.text for choice in answer.choices] == ["aHello 🫠!", "bHello 🫠!"]
    pieces = client.completions.create(model="tiny", prompt="a", stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == "Hello 🫠!"


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "also-tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_errors(client: openai.OpenAI, backend: RecitingBackend) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="other", messages=[{"role": "user", "content": "hi"}])
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model="tiny", prompt="a", temperature=-1, stream=True)
    assert bad.value.param == "temperature"
    backend.fail_at = 3
    try:
        with pytest.raises(openai.APIError):
            list(client.completions.create(model="tiny", prompt="a", stream=True))
    finally:
        backend.fail_at = None

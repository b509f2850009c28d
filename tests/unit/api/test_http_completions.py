# SPDX-License-Identifier: Apache-2.0
"""/v1/completions: prompts in every form, echo, log probabilities, limits of length."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import pytest

from unit.api.byte_tokenizer import BOS, END, VOCAB_SIZE, byte_tokenizer, piece, spell
from unit.api.live_server import LiveServer, running
from unit.api.reciting_backend import RecitingBackend

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
LIMIT = 64


@pytest.fixture(scope="module")
def backend() -> RecitingBackend:
    # An embedding may have more rows than the tokenizer has tokens.
    return RecitingBackend([], end=END, vocab_size=VOCAB_SIZE + 7, max_model_len=LIMIT)


@pytest.fixture(scope="module")
def server(backend: RecitingBackend) -> Iterator[LiveServer]:
    with running(backend, byte_tokenizer(adds_bos=True)) as server:
        yield server


def one(server: LiveServer, **body: Any) -> dict[str, Any]:
    response = server.post(TEXT, body)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def streamed(server: LiveServer, **body: Any) -> dict[str, Any]:
    """A streamed choice put together."""
    choices = [chunk["choices"][0] for chunk in server.stream(TEXT, body)]
    whole: dict[str, Any] = {"text": "".join(choice["text"] for choice in choices)}
    parts = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    whole["logprobs"] = (
        {name: [x for part in parts for x in part[name]] for name in parts[0]} if parts else None
    )
    whole["finish_reason"] = choices[-1]["finish_reason"]
    return whole


def check_alignment(choice: dict[str, Any], num_shown: int) -> None:
    """B4: tokens are slices of the text at their offsets, for the first `num_shown` of them."""
    logprobs, text = choice["logprobs"], choice["text"]
    ends = [*logprobs["text_offset"][1:], len(text)]
    slices = [text[i:j] for i, j in zip(logprobs["text_offset"], ends, strict=True)]
    assert slices[:num_shown] == logprobs["tokens"][:num_shown]
    lengths = {len(logprobs[name]) for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs")}
    assert len(lengths) == 1


def test_logprobs_line_up_with_text(server: LiveServer, backend: RecitingBackend) -> None:
    """B4"""
    backend.script = [
        *spell("Mon "),
        piece("Wed"),
        *spell("x 龜 "),
        piece("Wed"),
        piece("nesday"),
        *spell("z"),
    ]
    choice = one(server, prompt="p", logprobs=3)
    assert choice["text"] == "Mon Wedx 龜 Wednesdayz"
    check_alignment(choice, num_shown=14)
    assert choice["logprobs"]["tokens"][-1] == "<|end|>"
    choice = one(server, prompt="p", logprobs=3, stop="Wednesday")
    assert choice["text"] == "Mon Wedx 龜 "
    check_alignment(choice, num_shown=11)
    assert choice["logprobs"]["tokens"][-2:] == ["Wed", "nesday"]
    assert streamed(server, prompt="p", logprobs=3, stop="Wednesday") == {
        name: choice[name] for name in ("text", "logprobs", "finish_reason")
    }


def test_logprobs_of_a_text_that_ends_within_a_character(
    server: LiveServer, backend: RecitingBackend
) -> None:
    """B4: the last token has what its bytes became, also when the text before them had left already."""
    for script in ([0xF0, 0xF0], [*b"a", 0xF0, 0x9F], [0xF0, *b"a", 0xE9, 0xBE]):
        backend.script = script
        body = {"prompt": "p", "logprobs": 1, "max_tokens": len(script)}
        choice = one(server, **body)
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
        check_alignment(choice, num_shown=len(script))
        assert streamed(server, **body) == {
            name: choice[name] for name in ("text", "logprobs", "finish_reason")
        }


def test_one_logprob_entry_a_token(server: LiveServer, backend: RecitingBackend) -> None:
    """B4"""
    backend.script = spell("Hello")
    for fields in ({}, {"stop": "lo"}, {"max_tokens": 3}):
        body = server.post(TEXT, {"prompt": "p", "logprobs": 2, **fields}).json()
        assert len(body["choices"][0]["logprobs"]["tokens"]) == body["usage"]["completion_tokens"]


@pytest.mark.parametrize("prompt", ["\n2) Maria owns 31", "龜🫠"])
@pytest.mark.parametrize("max_tokens", [0, 5])
def test_echo(server: LiveServer, backend: RecitingBackend, prompt: str, max_tokens: int) -> None:
    """B5, G3, G10"""
    backend.script = spell("Hello")
    body = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": max_tokens, "temperature": 0}
    choice = one(server, **body)
    assert choice["text"] == prompt + "Hello"[:max_tokens]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert logprobs["token_logprobs"][0] is None
    assert all(math.isfinite(value) for value in logprobs["token_logprobs"][1:])
    assert len(logprobs["tokens"]) == 1 + len(prompt.encode()) + max_tokens, "BOS, prompt and answer"
    check_alignment(choice, num_shown=len(logprobs["tokens"]))
    assert streamed(server, **body) == {name: choice[name] for name in ("text", "logprobs", "finish_reason")}
    del body["logprobs"]
    assert one(server, **body)["text"] == streamed(server, **body)["text"] == choice["text"]


def test_echo_of_ids(server: LiveServer, backend: RecitingBackend) -> None:
    """F5: half characters and control tokens come back."""
    backend.script = []
    choice = one(server, prompt=[BOS, 0xE9, 0xBE, piece("ab")], echo=True, logprobs=0, max_tokens=0)
    assert choice["text"] == "<bos>\ufffdab"
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]


def test_echo_with_several_choices(server: LiveServer, backend: RecitingBackend) -> None:
    backend.script = spell("xy")
    body = {"prompt": ["a", "bc"], "n": 2, "echo": True, "logprobs": 0}
    whole = server.post(TEXT, body).json()["choices"]
    chunks = server.stream(TEXT, body)
    for index, prompt in enumerate(["a", "a", "bc", "bc"]):
        assert whole[index]["text"] == prompt + "xy"
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert "".join(choice["text"] for choice in mine) == prompt + "xy"
        tokens = [token for choice in mine for token in choice["logprobs"]["tokens"]]
        assert tokens == whole[index]["logprobs"]["tokens"] == ["", *prompt, "x", "y", "<|end|>"]


@pytest.mark.parametrize("logprob", [-math.inf, math.nan])
def test_logprobs_are_finite(logprob: float) -> None:
    """B6"""
    backend = RecitingBackend(spell("Hi"), end=END, vocab_size=VOCAB_SIZE, logprob=logprob)
    with running(backend, byte_tokenizer()) as server:
        choice = one(server, prompt="ab", echo=True, logprobs=2)
        assert choice["logprobs"]["token_logprobs"] == [None, *[-9999.0] * 4]
        chat = {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 2}
        response = server.post(CHAT, chat)
        assert response.json()["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999.0
        assert server.stream(CHAT, chat)


@pytest.mark.parametrize("max_tokens", [0, -1, 1.5, "5", 10**30, True])
def test_bad_max_tokens(server: LiveServer, max_tokens: Any) -> None:
    """G3"""
    response = server.post(TEXT, {"prompt": "a", "max_tokens": max_tokens})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "max_tokens"


@pytest.mark.parametrize("room", [1, 5])
def test_answers_fill_the_room_that_is_left(server: LiveServer, backend: RecitingBackend, room: int) -> None:
    """G4"""
    backend.script = spell("x" * LIMIT)
    ids = spell("a" * (LIMIT - room))
    body = server.post(TEXT, {"prompt": ids, "max_tokens": None}).json()
    assert body["choices"][0]["text"] == "x" * room
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] == LIMIT


@pytest.mark.parametrize("num_tokens", [LIMIT, LIMIT + 1, 10 * LIMIT, 500_000])
def test_prompt_over_the_limit(server: LiveServer, num_tokens: int) -> None:
    """G1"""
    chat = {"messages": [{"role": "user", "content": "x" * num_tokens}]}
    for path, body in ((TEXT, {"prompt": "x" * num_tokens}), (CHAT, chat)):
        for stream in (False, True):
            response = server.post(path, {**body, "stream": stream})
            assert response.status_code == 400
            error = response.json()["error"]
            assert error["code"] == "context_length_exceeded"
            assert str(LIMIT) in error["message"]


@pytest.mark.parametrize("num_tokens", [64, 200, 1023])
def test_prompt_longer_than_all_blocks_does_not_wedge_the_queue(num_tokens: int) -> None:
    """G2: 4 blocks of 16 tokens under a model of 1024."""
    backend = RecitingBackend(spell("Hi"), end=END, vocab_size=VOCAB_SIZE, max_model_len=1024, num_blocks=4)
    text = "x" * num_tokens
    chat = {"messages": [{"role": "user", "content": text}]}
    with running(backend, byte_tokenizer()) as server:
        for path, body in ((TEXT, {"prompt": text}), (TEXT, {"prompt": [7] * num_tokens}), (CHAT, chat)):
            for stream in (False, True):
                response = server.post(path, {**body, "stream": stream})
                assert response.status_code == 400
                assert response.json()["error"]["code"] == "context_length_exceeded"
                assert "64" in response.json()["error"]["message"]
                begin_s = time.perf_counter()
                assert one(server, prompt="x" * 61)["text"] == "Hi"
                assert time.perf_counter() - begin_s < 5
        assert backend.num_steps == 6 * 3, "nothing was computed for those refused"


def test_prompt_and_max_tokens_over_the_limit(server: LiveServer) -> None:
    """G1"""
    response = server.post(TEXT, {"prompt": spell("a" * 60), "max_tokens": 5})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert server.post(TEXT, {"prompt": spell("a" * 60), "max_tokens": 4}).status_code == 200


@pytest.mark.parametrize("prompt", [[], [[]], ["a", []], ["a", 1], [True], 5, None, {}, [1.5], [["a"]]])
def test_bad_prompts(server: LiveServer, prompt: Any) -> None:
    response = server.post(TEXT, {"prompt": prompt})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"


def test_empty_prompt(server: LiveServer) -> None:
    """G5: BOS alone is a prompt; without a BOS there is none."""
    assert server.post(TEXT, {"prompt": ""}).status_code == 200
    assert server.post(TEXT, {"prompt": "", "add_special_tokens": False}).status_code == 400
    assert server.post(TEXT, {"prompt": ["a", ""], "add_special_tokens": False}).status_code == 400
    assert server.http.get("/health").status_code == 200


@pytest.mark.parametrize("token", [10**18, -1, VOCAB_SIZE, 2**64])
def test_ids_outside_the_vocabulary(server: LiveServer, token: int) -> None:
    """G6"""
    assert server.post(TEXT, {"prompt": [token]}).status_code == 400
    assert server.post(TEXT, {"prompt": [[5], [token]]}).status_code == 400
    assert server.post(TEXT, {"prompt": [VOCAB_SIZE - 1]}).status_code == 200


@pytest.mark.parametrize("prompts", [["a", "bb", "ccc"], [[97], [98, 98], [99, 99, 99]]])
def test_list_of_prompts(server: LiveServer, backend: RecitingBackend, prompts: list[Any]) -> None:
    """G9"""
    backend.script = spell("xy")
    body = {"prompt": prompts, "n": 2, "echo": True}
    whole = server.post(TEXT, body).json()
    expected = ["axy", "axy", "bbxy", "bbxy", "cccxy", "cccxy"]
    assert [choice["index"] for choice in whole["choices"]] == list(range(6))
    assert [choice["text"] for choice in whole["choices"]] == expected
    assert whole["usage"]["completion_tokens"] == 18
    chunks = server.stream(TEXT, body)
    for index, text in enumerate(expected):
        mine = [c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert "".join(mine) == text


def test_prompt_logprobs_and_ids(server: LiveServer, backend: RecitingBackend) -> None:
    backend.script = spell("x")
    choice = one(server, prompt="ab", prompt_logprobs=1, max_tokens=0, return_token_ids=True)
    assert choice["prompt_token_ids"] == [BOS, 97, 98]
    assert choice["token_ids"] == []
    first, second, third = choice["prompt_logprobs"]
    assert first is None
    assert second == {"97": {"logprob": -0.5, "rank": 1, "decoded_token": "a"}}
    assert third["98"]["decoded_token"] == "b"


def test_tokenize_and_back(server: LiveServer) -> None:
    body = server.post("/tokenize", {"prompt": "h<bos>", "return_token_strs": True}).json()
    assert body["tokens"] == [BOS, *spell("h<bos>")]
    assert body["count"] == len(body["tokens"]) == len(body["token_strs"])
    assert body["max_model_len"] == LIMIT
    assert server.post("/detokenize", {"tokens": spell("h龜")}).json() == {"prompt": "h龜"}
    assert server.post("/detokenize", {"tokens": [VOCAB_SIZE]}).status_code == 400
    chat = server.post("/tokenize", {"messages": [{"role": "user", "content": "hi"}]}).json()
    assert chat["tokens"] == [BOS, *spell("[user]hi"), END, *spell("[assistant]")]

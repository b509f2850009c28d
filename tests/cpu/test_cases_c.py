# SPDX-License-Identifier: Apache-2.0
"""Cases C over HTTP with a real model, where test_cases.py leaves something to try.

C5   tiny temperatures                test_cases.py
C9   absurd values                    unit/api/test_http_validation.py, each alone; here the server answers on
C11  ids beyond the tokenizer         test_padded_vocabulary.py, unit/engine/test_loop.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.api.served_model import ServedModel
from headrace.core.config import BackendName, ModelConfig
from headrace.engine.admission import max_tokens_in
from headrace.engine.build import load_model
from headrace.observe.counts import StepCounts
from unit.api.live_server import LiveServer
from unit.api.slow_server import CHAT, TEXT

PROMPT = "A list of animals: cat, dog,"
VOCAB_SIZE = 49_152


def serve(path: Path, backend: BackendName) -> LiveServer:
    def load() -> ServedModel:
        counts = StepCounts()
        config = ModelConfig(backend=backend, max_model_len=512, kv_cache_bytes=32 * 2**20)
        loaded = load_model(str(path), config, on_step=counts.on_step)
        return ServedModel(
            names=(loaded.name,),
            created_s=1,
            engine=loaded.engine,
            tokenizer=loaded.tokenizer,
            chat_template=loaded.chat_template,
            max_model_len=max_tokens_in(loaded.info),
            vocab_size=loaded.info.vocab_size,
            step_counts=counts,
        )

    return LiveServer(load).wait_ready()


@pytest.fixture(scope="module")
def server(smollm2_path: Path) -> Iterator[LiveServer]:
    server = serve(smollm2_path, "cpu")
    yield server
    assert server.finish() == 0


def body_of(path: str, text: str = PROMPT, **fields: Any) -> dict[str, Any]:
    body = {"max_tokens": 8, "return_token_ids": True, **fields}
    return body | ({"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text})


def choices(server: LiveServer, path: str, text: str = PROMPT, **fields: Any) -> list[list[int]]:
    response = server.post(path, body_of(path, text, **fields))
    assert response.status_code == 200, response.text
    got = response.json()["choices"]
    assert [choice["index"] for choice in got] == list(range(len(got)))
    return [choice["token_ids"] for choice in got]


def listed(server: LiveServer, texts: list[str]) -> list[list[int]]:
    """The answers to several prompts in one call."""
    body = {"prompt": texts, "seed": 5, "max_tokens": 8, "return_token_ids": True}
    got = server.post(TEXT, body).json()["choices"]
    assert [choice["index"] for choice in got] == list(range(len(texts)))
    return [choice["token_ids"] for choice in got]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_c1_a_seeded_request_in_changing_company(server: LiveServer, path: str) -> None:
    """Others without a seed, of other lengths and settings, that begin and end at other moments."""
    seeded = {"seed": 42, "temperature": 0.8, "top_p": 0.95, "frequency_penalty": 0.5}
    alone = choices(server, path, **seeded)
    others = ({"temperature": 1.3}, {"max_tokens": 3, "text": "Hi"}, {"max_tokens": 20, "top_k": 4})
    with ThreadPoolExecutor(4) as clients:
        for turn in range(3):
            company = [clients.submit(choices, server, path, **fields) for fields in others[turn % 2 :]]  # type: ignore[arg-type]
            assert clients.submit(choices, server, path, **seeded).result() == alone
            for one in company:
                assert len(one.result()) == 1


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_c2_seeds_at_the_edges(server: LiveServer, path: str) -> None:
    seeds = (0, 1, -1, 2**63)
    texts = [choices(server, path, seed=seed)[0] for seed in seeds]
    assert texts == [choices(server, path, seed=seed)[0] for seed in seeds]
    assert len({tuple(ids) for ids in texts}) == len(seeds)
    assert choices(server, path, seed=-(2**63))[0] == choices(server, path, seed=2**63)[0], "modulo 2**64"
    assert len({tuple(choices(server, path)[0]) for _ in range(3)}) == 3


def test_c3_a_list_of_prompts_in_either_order(server: LiveServer) -> None:
    """One seed for the list; then one each, as parallel chats."""
    prompts = [f"{number} {PROMPT}" for number in range(8)]

    forward, backward = listed(server, prompts), listed(server, prompts[::-1])
    assert forward == backward[::-1]
    assert forward[5] == choices(server, TEXT, prompts[5], seed=5)[0]

    def chats(order: list[int]) -> dict[int, list[int]]:
        with ThreadPoolExecutor(8) as clients:
            answers = clients.map(lambda i: choices(server, CHAT, prompts[i], seed=100 + i)[0], order)
            return dict(zip(order, answers, strict=True))

    assert chats(list(range(8))) == chats(list(range(8))[::-1])


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_c4_several_answers_are_those_of_the_next_seeds(server: LiveServer, path: str) -> None:
    four = choices(server, path, seed=7, n=4)
    assert len({tuple(ids) for ids in four}) > 1
    assert four == choices(server, path, seed=7, n=4)
    assert four == [choices(server, path, seed=7 + k)[0] for k in range(4)]
    chunks = server.stream(path, body_of(path, seed=7, n=4))
    streamed: list[list[int]] = [[], [], [], []]
    for chunk in chunks:
        for choice in chunk["choices"]:
            streamed[choice["index"]] += choice.get("token_ids") or []
    assert streamed == four


def test_c6_rows_of_every_kind_in_one_batch(server: LiveServer) -> None:
    """With masks on, no row's numbers break; each says what it says alone."""
    banned = {str(token): -100 for token in range(0, 3000, 10)}
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 1, "min_p": 1, "seed": 1},
        {"temperature": 0, "logit_bias": banned},
        {"temperature": 1, "logit_bias": banned, "top_p": 1e-9, "seed": 2},
        {"temperature": 2, "top_k": 1, "seed": 3},
        {"temperature": 1, "min_tokens": 8, "seed": 4},
    ]
    alone = [choices(server, TEXT, **kind) for kind in kinds]
    with ThreadPoolExecutor(len(kinds)) as clients:
        for _ in range(2):
            assert list(clients.map(lambda kind: choices(server, TEXT, **kind), kinds)) == alone
    assert alone[1] == alone[4] == alone[0]
    assert alone[3] == alone[2]
    assert not set(alone[2][0]) & {int(token) for token in banned}


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_c7_the_ends_of_the_ranges_mean_greedy_or_off(server: LiveServer, path: str) -> None:
    greedy = choices(server, path, temperature=0)
    for fields in ({"top_p": 0}, {"top_p": 0.0001}, {"top_k": 1}, {"min_p": 1}):
        assert choices(server, path, seed=1, **fields) == greedy, fields
    free = choices(server, path, seed=1)
    assert free != greedy
    for fields in ({"top_p": 1}, {"top_p": 1.0}, {"top_k": 0}, {"top_k": -1}, {"min_p": 0}):
        assert choices(server, path, seed=1, **fields) == free, fields


def test_c8_a_penalty_does_the_same_on_both_routes(server: LiveServer) -> None:
    """A chat in the middle of a loop, and the same token ids as a completion. Another spelling is refused."""
    messages = [{"role": "user", "content": "Sing."}, {"role": "assistant", "content": "la la la" * 8}]
    chat = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    text = {"prompt": server.post("/tokenize", chat).json()["tokens"]}
    fields = {"temperature": 0, "max_tokens": 24, "ignore_eos": True, "return_token_ids": True}

    def ids(**penalty: float) -> list[int]:
        answers = [
            server.post(path, {**fields, **prompt, **penalty}).json()["choices"][0]["token_ids"]
            for path, prompt in ((CHAT, chat), (TEXT, text))
        ]
        assert answers[0] == answers[1]
        return list(answers[0])

    loop = ids()
    assert ids(repetition_penalty=1.0) == loop
    assert len(set(loop)) < 8, "it loops"
    for penalty in ({"repetition_penalty": 1.8}, {"frequency_penalty": 2}):
        assert len(set(ids(**penalty))) > 1.5 * len(set(loop)), penalty
    for path, prompt in ((CHAT, chat), (TEXT, text)):
        refused = server.post(path, {**prompt, "repeat_penalty": 1.8})
        assert refused.status_code == 400
        assert "repeat_penalty" in refused.json()["error"]["message"]


def test_c9_the_next_request_is_right_after_absurd_ones(server: LiveServer) -> None:
    before = choices(server, TEXT, temperature=0)
    texts = [
        '"temperature": 1e6',
        '"top_p": -0.5',
        '"repetition_penalty": 0',
        '"top_k": -7',
        '"min_p": 2',
        '"temperature": "hot"',
        '"temperature": 1e400',
        f'"logit_bias": {json.dumps({str(token): 1 for token in range(301)})}',
    ]
    for text in texts:
        body = f'{{"prompt": "a", {text}}}'
        response = server.http.post(TEXT, content=body, headers={"Content-Type": "application/json"})
        assert response.status_code == 400, text
        name = text.split('"')[1]
        error = response.json()["error"]
        assert name in (error["param"] or "") or name in error["message"]
    assert server.http.get("/health").status_code == 200
    assert choices(server, TEXT, temperature=0) == before


def test_c10_bias_outside_the_vocabulary_is_refused_and_inside_it_rules(server: LiveServer) -> None:
    for bias in ({"999999999": 5}, {"-1": 5}, {"abc": 5}, {"5": 1e9}, {str(VOCAB_SIZE): 1}):
        response = server.post(TEXT, body_of(TEXT, logit_bias=bias))
        assert response.status_code == 400, bias
        assert "logit_bias" in str(response.json()["error"])
    for path in (CHAT, TEXT):
        for token in (30, VOCAB_SIZE - 1):
            fields = {"logit_bias": {str(token): 100}, "n": 2, "max_tokens": 5, "ignore_eos": True}
            assert choices(server, path, **fields) == [[token] * 5] * 2
            chunks = server.stream(path, body_of(path, **fields))
            streamed = [t for chunk in chunks for c in chunk["choices"] for t in c.get("token_ids") or ()]
            assert streamed == [token] * 10


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_deterministic_is_taken_by_the_cpu_backend(server: LiveServer, path: str) -> None:
    assert choices(server, path, temperature=0, deterministic=True) == choices(server, path, temperature=0)


def test_deterministic_is_refused_by_the_reference_backend(smollm2_path: Path) -> None:
    server = serve(smollm2_path, "reference")
    try:
        for path in (CHAT, TEXT):
            for stream in (False, True):
                response = server.post(path, body_of(path, deterministic=True, stream=stream))
                assert response.status_code == 400
                assert response.json()["error"]["param"] == "deterministic"
        assert len(choices(server, TEXT, "a", max_tokens=1, deterministic=False)[0]) == 1
    finally:
        server.finish()

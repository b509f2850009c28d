# SPDX-License-Identifier: Apache-2.0
"""What is refused at submission, in which words, and that what is at the limit is served."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.config import EngineConfig
from headrace.core.errors import RequestError
from headrace.core.request import GenerateRequest, SamplingParams
from headrace.runner.backends.fake import FakeBackend
from unit.engine.driver import Driver

LIMIT = 32


def driver(**backend: int) -> Driver:
    options = {"vocab_size": 64, "max_model_len": LIMIT, "block_size": 4, "num_blocks": 20} | backend
    return Driver(FakeBackend(**options), EngineConfig(max_num_seqs=2, max_num_batched_tokens=8), frozenset())


def request(num_prompt: int, **params: Any) -> GenerateRequest:
    return GenerateRequest(
        request_id="r", prompt_ids=(1,) * num_prompt, params=SamplingParams(seed=0, **params)
    )


def refusal(sent: GenerateRequest, **backend: int) -> RequestError:
    with pytest.raises(RequestError) as caught:
        driver(**backend).add(sent)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "needed"),
    [(LIMIT, None, 33), (LIMIT + 1, None, 34), (10 * LIMIT, 1, 321), (10, 23, 33), (LIMIT + 1, 0, 33)],
)
def test_too_long(num_prompt: int, max_tokens: int | None, needed: int) -> None:
    error = refusal(request(num_prompt, max_tokens=max_tokens))
    assert error.code == "context_length_exceeded"
    assert f"needs {needed} tokens" in error.message
    assert f"at most {LIMIT} fit" in error.message


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "num_output"),
    [
        (LIMIT - 1, None, 1),
        (LIMIT - 5, None, 5),
        (LIMIT - 1, 1, 1),
        (10, 22, 22),
        (LIMIT, 0, 0),
        (1, None, 31),
    ],
)
def test_at_the_limit(num_prompt: int, max_tokens: int | None, num_output: int) -> None:
    """Of the model's length and of all the KV blocks at once."""
    serving = driver(num_blocks=LIMIT // 4)
    serving.add(request(num_prompt, max_tokens=max_tokens))
    serving.run()
    finished = serving.answers["r", 0].finished
    assert finished is not None
    assert (finished.reason, finished.num_prompt, finished.num_output) == ("length", num_prompt, num_output)


def test_longer_than_all_blocks_is_refused_and_does_not_wedge_the_queue() -> None:
    """Within the model's length, but not within the KV blocks (case G2)."""
    assert refusal(request(20, max_tokens=1), num_blocks=5).code == "context_length_exceeded"
    serving = driver(num_blocks=5)
    with pytest.raises(RequestError, match="at most 20 fit"):
        serving.add(request(20))
    serving.add(request(3))
    serving.run()
    finished = serving.answers["r", 0].finished
    assert finished is not None
    assert finished.num_output == 17


@pytest.mark.parametrize("token", [-1, 64, 10**18])
def test_ids_outside_the_vocabulary(token: int) -> None:
    ids = GenerateRequest(request_id="r", prompt_ids=(1, token, 2))
    error = refusal(ids)
    assert error.param == "prompt"
    assert f"token id {token}, but this model's ids are 0 to 63" in error.message
    assert refusal(request(1, stop_token_ids=(token,))).param == "stop_token_ids"
    if token > 0:
        assert refusal(request(1, logit_bias=((token, 1.0),))).param == "logit_bias"


def test_the_last_id_of_the_vocabulary_is_fine() -> None:
    serving = driver()
    serving.add(GenerateRequest(request_id="r", prompt_ids=(63,), params=SamplingParams(max_tokens=1)))
    serving.run()


def test_empty_prompt() -> None:
    error = refusal(GenerateRequest(request_id="r", prompt_ids=()))
    assert error.param == "prompt"
    assert "empty" in error.message


@pytest.mark.parametrize("n", [0, -1, 129])
def test_absurd_n(n: int) -> None:
    assert refusal(GenerateRequest(request_id="r", prompt_ids=(1,), n=n)).param == "n"


def test_min_tokens_beyond_max_tokens() -> None:
    assert refusal(request(1, max_tokens=3, min_tokens=4)).param == "min_tokens"
    assert refusal(request(20, min_tokens=13)).code == "context_length_exceeded"

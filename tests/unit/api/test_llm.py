# SPDX-License-Identifier: Apache-2.0
"""The LLM class around a backend without weights."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.api.llm import LLM
from headrace.core.config import EngineConfig, ModelConfig
from headrace.core.errors import ConfigError, EngineStopped, RequestError
from headrace.core.request import SamplingParams
from headrace.engine.build import LoadedModel
from headrace.runner.backends.fake import FakeBackend
from unit.api.byte_tokenizer import END, VOCAB_SIZE, byte_tokenizer, spell
from unit.api.live_server import serve_backend
from unit.api.reciting_backend import RecitingBackend


def llm_around(backend: Any) -> LLM:
    served = serve_backend(backend, byte_tokenizer())
    return LLM.of(
        LoadedModel(
            name="tiny",
            path=Path("tiny"),
            spec=cast(Any, None),
            info=backend.info,
            resolved=cast(Any, None),
            tokenizer=served.tokenizer,
            chat_template=served.chat_template,
            engine=served.engine,
        )
    )


@pytest.fixture
def reciting() -> Iterator[LLM]:
    with llm_around(RecitingBackend(spell("hello"), end=END, vocab_size=VOCAB_SIZE)) as llm:
        yield llm


@pytest.fixture
def drawing() -> Iterator[LLM]:
    with llm_around(FakeBackend(vocab_size=VOCAB_SIZE)) as llm:
        yield llm


def test_one_prompt(reciting: LLM) -> None:
    (output,) = reciting.generate("ab")
    assert (output.prompt, output.prompt_token_ids) == ("ab", [97, 98])
    (answer,) = output.outputs
    assert (answer.index, answer.text, answer.finish_reason) == (0, "hello", "stop")
    assert answer.token_ids == [*spell("hello"), END]
    assert answer.logprobs is answer.cumulative_logprob is None


def test_prompts_of_every_form(reciting: LLM) -> None:
    for prompts in (["a", "bc"], [[97], [98, 99]], ["a", [98, 99]]):
        outputs = reciting.generate(cast(Any, prompts))
        assert [output.prompt_token_ids for output in outputs] == [[97], [98, 99]]
    assert reciting.generate([97, 98])[0].prompt_token_ids == [97, 98]
    assert reciting.generate([]) == []


def test_params_for_each(reciting: LLM) -> None:
    params = [SamplingParams(max_tokens=2), SamplingParams(stop=("ll",))]
    first, second = reciting.generate(["a", "b"], params)
    assert (first.outputs[0].text, first.outputs[0].finish_reason) == ("he", "length")
    assert (second.outputs[0].text, second.outputs[0].stop_reason) == ("he", "ll")
    with pytest.raises(RequestError, match="2 params"):
        reciting.generate(["a"], params)


def test_logprobs(reciting: LLM) -> None:
    (output,) = reciting.generate("ab", SamplingParams(logprobs=1, prompt_logprobs=1, max_tokens=2))
    answer = output.outputs[0]
    assert answer.logprobs is not None
    assert [list(entry) for entry in answer.logprobs] == [[104], [101]]
    assert answer.logprobs[0][104].decoded_token == "h"
    assert answer.cumulative_logprob == -1.0
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == 2


def test_n_and_seed(drawing: LLM) -> None:
    params = SamplingParams(seed=3, max_tokens=8)
    (output,) = drawing.generate("a", params, n=3)
    again = drawing.generate(["a", "a"], params, n=3)
    ids = [answer.token_ids for answer in output.outputs]
    assert len({tuple(one) for one in ids}) == 3
    assert [[answer.token_ids for answer in one.outputs] for one in again] == [ids, ids]


def test_chat(reciting: LLM) -> None:
    talk = [{"role": "user", "content": "hi"}]
    (output,) = reciting.chat(talk)
    assert output.outputs[0].text == "hello"
    assert output.prompt_token_ids == [*spell("[user]hi"), END, *spell("[assistant]")]
    assert len(reciting.chat([talk, talk])) == 2


def test_streams(reciting: LLM) -> None:
    assert "".join(delta.text for delta in reciting.stream("a")) == "hello"
    talk = [{"role": "user", "content": "hi"}]
    assert [delta.text for delta in reciting.stream_chat(talk)][:2] == ["h", "e"]


def test_progress_bar(reciting: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    reciting.generate(["a", "b"], use_tqdm=True)
    assert "2/2" in capsys.readouterr().err


def test_closing(reciting: LLM) -> None:
    reciting.close()
    reciting.close()
    with pytest.raises(EngineStopped):
        reciting.generate("a")


def test_llm_needs_no_http_library() -> None:
    code = (
        "import sys; from headrace import LLM, SamplingParams; import headrace.api.generation;"
        "print([n for n in ('fastapi', 'starlette', 'pydantic', 'uvicorn', 'torch') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_engine_options(monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[ModelConfig] = []

    def load(source: str, config: ModelConfig) -> LoadedModel:
        configs.append(config)
        return llm_around(FakeBackend(vocab_size=VOCAB_SIZE)).model

    monkeypatch.setattr("headrace.api.llm.load_model", load)
    with LLM("m"):
        assert configs[-1].engine == EngineConfig()
    options: dict[str, Any] = {
        "max_num_seqs": 3,
        "max_num_batched_tokens": 64,
        "max_itl_ms": 20.0,
        "enable_prefix_caching": False,
        "scheduling_policy": "priority",
    }
    with LLM("m", **options):
        assert configs[-1].engine == EngineConfig(**options)
    with pytest.raises(ConfigError, match="scheduling_policy"):
        LLM("m", scheduling_policy=cast(Any, "best"))

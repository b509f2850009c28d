# SPDX-License-Identifier: Apache-2.0
"""Case F8: a template given by the user is the one that is used, wherever it may be given, and a bad one
is told before a model is loaded."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headrace import LLM
from headrace.core.errors import ConfigError

COMMAND = [sys.executable, "-m", "headrace.cli.main"]
TEMPLATE = "{% for message in messages %}{{ message.content }} is{% endfor %}"
TALK = [{"role": "user", "content": "The capital of France"}]
WHOLE = "The capital of France is"


def given_as(form: str, folder: Path) -> str:
    path = folder / "own.jinja"
    path.write_text(TEMPLATE)
    return TEMPLATE if form == "text" else str(path)


@contextlib.contextmanager
def served(model: Path, stderr: Path, *options: str) -> Iterator[httpx.Client]:
    command = [*COMMAND, "serve", str(model), "--port", "0", "--max-model-len", "256", *options]
    with (
        stderr.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        found = re.search(r"http://\S+(?=/v1)", process.stdout.readline())
        assert found is not None, stderr.read_text()
        with httpx.Client(base_url=found[0], timeout=30) as client:
            yield client
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.parametrize("form", ["file", "text"])
def test_serve(form: str, smollm2_path: Path, tmp_path: Path) -> None:
    option = given_as(form, tmp_path)
    with served(smollm2_path, tmp_path / "stderr", "--chat-template", option) as client:
        body = {"messages": TALK, "temperature": 0, "max_completion_tokens": 1, "logprobs": True}
        answer = client.post("/v1/chat/completions", json=body).json()
        assert answer["choices"][0]["message"]["content"] == " Paris"
        as_chat = client.post("/tokenize", json={"messages": TALK}).json()["tokens"]
        assert as_chat == client.post("/tokenize", json={"prompt": WHOLE}).json()["tokens"]
    assert "headrace: kernels = " in (tmp_path / "stderr").read_text()


@pytest.mark.parametrize("form", ["file", "text"])
def test_run(form: str, smollm2_path: Path, tmp_path: Path) -> None:
    words = ["-p", TALK[0]["content"], "--temperature", "0", "--max-tokens", "1"]
    command = [*COMMAND, "run", str(smollm2_path), *words, "--chat-template", given_as(form, tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, " Paris\n", "")


@pytest.mark.parametrize("form", ["file", "text"])
def test_llm(form: str, smollm2_path: Path, tmp_path: Path) -> None:
    with LLM(str(smollm2_path), max_model_len=256, chat_template=given_as(form, tmp_path)) as llm:
        assert llm.encode_chat(TALK) == llm.model.tokenizer.encode(WHOLE)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("no-such-file.jinja", "chat template file 'no-such-file.jinja' cannot be read"),
        ("{% for %}", "chat template is broken at line 1"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "run"])
def test_a_bad_one_ends_the_command(command: str, option: str, says: str, smollm2_path: Path) -> None:
    words = {"serve": ["--port", "0"], "run": ["-p", "hi"]}[command]
    done = subprocess.run(
        [*COMMAND, command, str(smollm2_path), *words, "--chat-template", option],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"headrace: {says}")
    assert done.stderr.count("\n") == 1, "and no model was loaded"


def test_a_bad_one_is_raised_by_llm(smollm2_path: Path) -> None:
    for option in ("no-such-file.jinja", "{% for %}"):
        with pytest.raises(ConfigError, match="chat template"):
            LLM(str(smollm2_path), chat_template=option)

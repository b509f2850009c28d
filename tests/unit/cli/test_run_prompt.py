# SPDX-License-Identifier: Apache-2.0
"""`headrace run` refuses what is no prompt before it looks for the model."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-m", "headrace", "run", "no-such-model"]


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
@pytest.mark.parametrize(
    ("stdin", "says"),
    [
        (b"", "headrace: there is no prompt: standard input is empty"),
        (b"\n", "headrace: there is no prompt: standard input is empty"),
        (b"a\xff", "headrace: standard input is not UTF-8"),
    ],
)
def test_what_is_no_prompt(locale: str, stdin: bytes, says: str) -> None:
    environment = {**os.environ, "LC_ALL": locale}
    done = subprocess.run(COMMAND, input=stdin, capture_output=True, check=False, env=environment)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode().startswith(says)
    assert done.stderr.count(b"\n") == 1


def test_no_answer_of_no_tokens() -> None:
    done = subprocess.run([*COMMAND, "-p", "x", "--max-tokens", "0"], capture_output=True, check=False)
    assert done.returncode == 2
    assert b"argument --max-tokens: '0' is no number of tokens: it must be at least 1" in done.stderr

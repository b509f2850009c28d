# SPDX-License-Identifier: Apache-2.0
"""`headrace run` as a person meets it: one prompt on a command line, and a chat in a terminal."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

COMMAND = [sys.executable, "-m", "headrace.cli.main", "run"]
WAIT_S = 60


def answer(*args: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *map(str, args)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=WAIT_S, check=False)


def test_only_the_answer_is_on_stdout(smollm2_path: Path) -> None:
    raw = ("--raw", "-p", "The capital of France is", "--temperature", "0", "--max-tokens", "1")
    done = answer(smollm2_path, *raw)
    assert (done.returncode, done.stdout) == (0, " Paris\n")
    assert done.stderr == ""


def test_times_go_to_stderr(smollm2_path: Path) -> None:
    done = answer(smollm2_path, "-p", "Hi", "--max-tokens", "3", "--verbose")
    assert done.returncode == 0
    assert "loaded in" in done.stderr
    assert "headrace: kernels = " in done.stderr
    assert "headrace: max_model_len = 8192 (" in done.stderr
    assert " 3 out" in done.stderr


def test_stdin_is_the_prompt(smollm2_path: Path) -> None:
    args = (smollm2_path, "--raw", "--temperature", "0", "--max-tokens", "1")
    for more in ((), ("-p", "-")):
        assert answer(*args, *more, stdin="The capital of France is").stdout == " Paris\n"


def test_a_seed_repeats_and_another_differs(smollm2_path: Path) -> None:
    def say(seed: int) -> str:
        return answer(smollm2_path, "-p", "Tell a story", "--seed", str(seed), "--max-tokens", "12").stdout

    assert say(5) == say(5) != say(6)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["-p", "x", "--temperature", "-1"], "temperature must be a number from 0 to 100"),
        (["-p", "", "--raw"], "The prompt is empty"),
        (["-p", "x", "--max-tokens", "999999"], "needs 10000"),
        (["-p", "x", "--seed", str(2**64)], "seed must be an integer from"),
        (["-p", "x", "--raw", "--system", "y"], "--system is for chats"),
        (["-p", "x", "--raw", "--chat-template", "{{ 1 }}"], "--chat-template is for chats"),
    ],
)
def test_bad_options_are_one_line(smollm2_path: Path, args: list[str], says: str) -> None:
    done = answer(smollm2_path, *args)
    assert done.returncode == 1
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_without_a_template_it_points_to_raw(gemma3_path: Path) -> None:
    done = answer(gemma3_path, "-p", "Hi")
    assert done.returncode == 1
    assert "no chat template" in done.stderr
    assert "--raw" in done.stderr


Chat = Callable[[int], pexpect.spawn]


@pytest.fixture
def chat(smollm2_path: Path) -> Iterator[Chat]:
    """Starts a chat whose answers have at most so many tokens, and waits for the prompt."""
    children: list[pexpect.spawn] = []

    def start(max_tokens: int) -> pexpect.spawn:
        args = [*COMMAND[1:], str(smollm2_path), "--temperature", "0", "--max-tokens", str(max_tokens)]
        child = pexpect.spawn(COMMAND[0], args, encoding="utf-8", timeout=WAIT_S, dimensions=(40, 200))
        children.append(child)
        child.expect("/help lists the commands")
        child.expect(">>> ")
        return child

    yield start
    for child in children:
        child.close(force=True)


def ask(child: pexpect.spawn, text: str) -> str:
    """Type a line; what is shown until the next prompt."""
    child.sendline(text)
    child.expect(">>> ")
    return str(child.before).replace("\r\n", "\n").removeprefix(text)


def num_answered(child: pexpect.spawn) -> int:
    """As /stats has it. Waits for prompts that are still to come, too."""
    child.sendline("/stats")
    child.expect(r"conversation: (\d+) questions answered")
    number = int(child.match.group(1))
    child.expect("context: ")
    child.expect(">>> ")
    return number


def num_prompt(child: pexpect.spawn) -> int:
    """Tokens that went in for the last answer."""
    child.sendline("/stats")
    child.expect(r"(\d+) tokens in")
    number = int(child.match.group(1))
    child.expect("context: ")
    child.expect(">>> ")
    return number


def leaves(child: pexpect.spawn) -> bool:
    child.expect(pexpect.EOF)
    child.close()
    return child.exitstatus == 0


def test_it_remembers_until_reset(chat: Chat) -> None:
    child = chat(3)
    ask(child, "Who are you?")
    first = num_prompt(child)
    ask(child, "Who are you?")
    assert num_prompt(child) > first + 10
    assert num_answered(child) == 2
    assert "Forgotten" in ask(child, "/reset")
    assert num_answered(child) == 0
    ask(child, "Who are you?")
    assert num_prompt(child) == first
    assert "told so" in ask(
        child, "/system Answer in one word and nothing else, whatever is asked of you here."
    )
    ask(child, "/reset")
    ask(child, "Who are you?")
    assert num_prompt(child) not in (first, 0)
    assert "No system message" in ask(child, "/system")
    assert "/system TEXT" in ask(child, "/help")
    assert "There is no command /nosuch; /help lists them" in ask(child, "/nosuch")
    child.sendline("/exit")
    assert leaves(child)


def test_ctrl_c_stops_the_answer_and_only_that(chat: Chat) -> None:
    child = chat(2000)
    child.sendline("Write a long story about a dog.")
    child.expect("dog.*[a-z]+ [a-z]+ ")
    child.sendintr()
    child.expect(r"\(stopped\)")
    child.expect(">>> ")
    assert num_answered(child) == 1
    child.sendintr()
    child.expect("Ctrl-C again or Ctrl-D leaves")
    child.expect(">>> ")
    child.sendintr()
    assert leaves(child)


def test_ctrl_d_leaves(chat: Chat) -> None:
    child = chat(1)
    child.sendeof()
    assert leaves(child)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param('"""one\ntwo\nthree"""\n', id="in triple quotes"),
        pytest.param("one\ntwo\nthree\n", id="pasted"),
        pytest.param("\x1b[200~one\ntwo\nthree\x1b[201~\n", id="pasted into a terminal that marks pastes"),
    ],
)
def test_many_lines_are_one_question(chat: Chat, block: str) -> None:
    child = chat(1)
    child.send(block)
    time.sleep(2)
    assert num_answered(child) == 1
    assert num_prompt(child) == 35, "the template's 30 and one, two, three with two line ends"

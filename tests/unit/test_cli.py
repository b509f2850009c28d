# SPDX-License-Identifier: Apache-2.0
"""The command's frame: help with examples everywhere, one line an error, statuses that scripts can use."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import __version__
from headrace.cli import main as entry
from headrace.cli.main import COMMANDS, build_parser, main

PACKAGE_HOME = Path(entry.__file__).parent


@pytest.fixture(autouse=True)
def _empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))


def all_parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    found = [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                found += all_parsers(inner)
    return found


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_help_has_examples(command: str) -> None:
    parsers = all_parsers(build_parser([command]))
    chosen = [parser for parser in parsers if f"headrace {command}" in parser.prog and parser.add_help]
    assert chosen
    for parser in chosen:
        text = parser.format_help()
        assert "examples:\n" in text, parser.prog
        assert f"\n  headrace {command}" in text, parser.prog
        assert all(len(line) <= 120 for line in text.splitlines())


def test_the_table_and_the_files_agree() -> None:
    with_parser = {p.stem for p in PACKAGE_HOME.glob("*.py") if "def add_parser(" in p.read_text()}
    # A command with several kinds may have a file for each.
    commands = {name for name in with_parser if name.split("_")[0] not in with_parser - {name}}
    assert {command.name for command in COMMANDS} == commands


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_one_line_about_each_is_the_same_everywhere(command: entry.Command) -> None:
    assert command.help in build_parser([]).format_help()


def test_version_and_bare_call(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"headrace {__version__}\n"
    assert main([]) == 0
    assert "examples:" in capsys.readouterr().out


def test_an_error_is_one_line_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "smolm2"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("headrace: no model is named 'smolm2'. Did you mean smollm2?")


@pytest.mark.parametrize("words", [["bogus"], ["pull"], ["pull", "x", "--sha256", "12"], ["--bogus"]])
def test_a_wrong_command_line_is_status_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(words)
    assert exit_.value.code == 2
    assert "usage: headrace" in capsys.readouterr().err


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(args: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("headrace.cli.models.run", interrupted)
    assert main(["models"]) == 130


def test_models_and_rm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF" + bytes(2_000_000))
    assert main(["pull", str(file), "--name", "mine"]) == 0
    assert capsys.readouterr().out == f"{file}\n"
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "SIZE", "SOURCE", "PATH"]
    assert lines[1].split() == ["mine", "2", "MB", str(file), str(file)]
    assert [line.split()[0] for line in lines[2:]] == ["smollm2", "gemma3-270m"]
    assert main(["rm", "mine"]) == 0  # no terminal, no question
    assert main(["rm", "mine"]) == 1
    assert file.exists()


def test_rm_asks_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    main(["pull", str(file), "--name", "mine"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer, left in (("", True), ("n", True), ("y", False)):
        monkeypatch.setattr("builtins.input", lambda question, answer=answer: answer)
        assert main(["rm", "mine"]) == 0
        assert (tmp_path / "home/models/mine").exists() == left


def test_a_reader_that_leaves_is_no_error() -> None:
    script = f"{sys.executable} -m headrace models --json | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], env=dict(os.environ), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "redirection", "status", "says"),
    [
        pytest.param(
            "models",
            ">/dev/full",
            1,
            "No space left on device",
            marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it"),
        ),
        ("models", ">&-", 0, ""),
        ("info ''", "", 1, "no model is named ''"),
    ],
)
def test_errors_of_the_system_are_one_line(words: str, redirection: str, status: int, says: str) -> None:
    script = f"{sys.executable} -m headrace {words} {redirection}"
    done = subprocess.run(["bash", "-c", script], env=dict(os.environ), capture_output=True, text=True)
    assert done.returncode == status
    assert says in done.stderr
    assert done.stderr.count("\n") == bool(says)


def test_a_home_that_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", "/dev/null/home")
    assert main(["pull", "smollm2"]) == 1
    assert "/dev/null" in capsys.readouterr().err

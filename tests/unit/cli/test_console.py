# SPDX-License-Identifier: Apache-2.0
"""What is typed or pasted in a terminal arrives as it was meant."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pexpect
import pytest

SCRIPT = """
from headrace.cli.console import Console
console = Console()
while True:
    try:
        print("GOT", repr(console.read()))
    except KeyboardInterrupt:
        print("INTERRUPT")
    except EOFError:
        print("END")
        break
"""


@pytest.fixture
def terminal() -> Iterator[pexpect.spawn]:
    child = pexpect.spawn(sys.executable, ["-c", SCRIPT], encoding="utf-8", timeout=20)
    child.expect(">>> ")
    yield child
    child.close(force=True)


def got(terminal: pexpect.spawn) -> str:
    terminal.expect(r"GOT ('.*?'|\".*?\")\r\n")
    return str(eval(terminal.match.group(1)))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("hello\n", "hello"),
        ("  spaces stay  \n", "  spaces stay  "),
        ("\n", ""),
        ('"""one\ntwo\n\nthree"""\n', "one\ntwo\n\nthree"),
        ('"""\none\n  two\n"""\n', "one\n  two"),
        ('"""one line"""\n', "one line"),
        ("one\ntwo\n\nthree\n", "one\ntwo\n\nthree"),
        ("\x1b[200~one\ntwo\n\nthree\x1b[201~\n", "one\ntwo\n\nthree"),
        ('\x1b[200~"""one\ntwo"""\x1b[201~\n', "one\ntwo"),
    ],
)
def test_reading(terminal: pexpect.spawn, typed: str, meant: str) -> None:
    terminal.send(typed)
    assert got(terminal) == meant
    terminal.expect(">>> ")
    terminal.send("next\n")
    assert got(terminal) == "next"


def test_a_block_typed_slowly(terminal: pexpect.spawn) -> None:
    terminal.send('"""one\n')
    terminal.expect(r"\.\.\. ")
    terminal.send("two\n")
    terminal.expect(r"\.\.\. ")
    terminal.send('"""\n')
    assert got(terminal) == "one\ntwo"


def test_interrupts_and_the_end(terminal: pexpect.spawn) -> None:
    terminal.send("half a line")
    terminal.expect("half a line")
    terminal.sendintr()
    terminal.expect("INTERRUPT")
    terminal.expect(">>> ")
    terminal.sendeof()
    terminal.expect("END")

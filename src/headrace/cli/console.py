# SPDX-License-Identifier: Apache-2.0
"""What a person types at a terminal: a line, a pasted piece of many lines, or a block between triple quotes.
Knows nothing of models."""

from __future__ import annotations

import contextlib
import importlib
import select
import sys

PROMPT = ">>> "
CONTINUED = "... "
QUOTES = '"""'

# A terminal without bracketed paste delivers a pasted piece line by line, with no pause to speak of.
PASTE_GAP_S = 0.02


class Console:
    """Raises EOFError at Ctrl-D and KeyboardInterrupt at Ctrl-C, as `input` does."""

    def __init__(self) -> None:
        with contextlib.suppress(ImportError):  # it gives `input` editing, history and bracketed paste
            importlib.import_module("readline")

    def read(self) -> str:
        """What the person wants to say, without the quotes of a block."""
        text = self._with_pasted_lines(input(PROMPT))
        if not text.lstrip().startswith(QUOTES):
            return text
        text = text.lstrip()[len(QUOTES) :]
        while not text.rstrip().endswith(QUOTES):
            text += "\n" + input(CONTINUED)
        return text.rstrip()[: -len(QUOTES)].strip("\n")

    def _with_pasted_lines(self, text: str) -> str:
        while _is_input_ready():
            text += "\n" + input()
        return text


def _is_input_ready() -> bool:
    if sys.platform == "win32":
        return False  # select knows no terminals there
    return bool(select.select([sys.stdin], [], [], PASTE_GAP_S)[0])

# SPDX-License-Identifier: Apache-2.0
"""Token ids to text as they come, however they are cut into pushes: characters leave whole, nothing is
lost, and bytes that never become a character are shown as U+FFFD."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from headrace.text.tokenizer import Tokenizer


class Detokenizer:
    """One text.

    Args:
        tokenizer: whose ids come.
        skip_special: leave control tokens out.
        continues: the text goes on after another one, such as a prompt, so that a leading space is its
            own. When false, the space that the tokenizer puts before a text is taken away.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, continues: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._drops_space = tokenizer.adds_space_prefix and not continues

    def push(self, ids: Iterable[int]) -> str:
        """The characters that these ids complete."""
        tokenizer = self._tokenizer
        raw = b"".join(
            tokenizer.token_bytes(token)
            for token in ids
            if not (self._skip_special and tokenizer.is_control(token))
        )
        if self._drops_space and raw:
            self._drops_space = False
            raw = raw.removeprefix(b" ")
        return self._decoder.decode(raw)

    def flush(self) -> str:
        """What is left of an unfinished character."""
        return self._decoder.decode(b"", final=True)

# SPDX-License-Identifier: Apache-2.0
"""Which characters of a text came from which token: what log probability lists need. It counts
characters only, and holds a token back until the text it gave has left in full."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.core.plan import TokenResult
from headrace.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TracedToken:
    result: TokenResult
    start: int  # characters of the text before it
    # The characters it completed: '' for the first bytes of a split character, whose last token has it
    # whole, so that pieces joined are the text. Control tokens that the text leaves out show their name.
    piece: str
    shown: bytes  # those of its bytes that are in the text: none for an end token or behind a stop match


class TokenTrace:
    """Follows one text from its first token on."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_chars = 0
        self._held: deque[tuple[TracedToken, int]] = deque()  # with the place where its text ends

    def push(self, results: Sequence[TokenResult]) -> None:
        for result in results:
            if self._skip_special and self._tokenizer.is_control(result.token):
                self.push_silent(result)
                continue
            raw = self._tokenizer.token_bytes(result.token)
            piece = self._decoder.decode(raw)
            # A token that begins a character, or goes on with one, waits until that character has left.
            is_within = bool(self._decoder.getstate()[0])
            end = self._num_chars + len(piece) + is_within
            self._held.append((TracedToken(result, self._num_chars, piece, raw), end))
            self._num_chars += len(piece)

    def push_silent(self, result: TokenResult) -> None:
        """A token that gives no text, such as the end token."""
        name = self._tokenizer.token_text(result.token)
        self._held.append((TracedToken(result, self._num_chars, name, b""), self._num_chars))

    def release(self, num_chars: int) -> tuple[TracedToken, ...]:
        """The tokens whose text is among the first `num_chars` characters, each once."""
        out: list[TracedToken] = []
        while self._held and self._held[0][1] <= num_chars:
            out.append(self._held.popleft()[0])
        return tuple(out)

    def finish(self, num_chars: int) -> tuple[TracedToken, ...]:
        """All remaining tokens of a text that ends after `num_chars` characters."""
        unfinished = self._decoder.decode(b"", final=True)
        if unfinished and self._held:
            token, end = self._held.pop()
            self._held.append((replace(token, piece=token.piece + unfinished), end))
        rest = tuple(_cut(token, num_chars) for token, _ in self._held)
        self._held.clear()
        return rest


def _cut(token: TracedToken, num_chars: int) -> TracedToken:
    kept = num_chars - token.start
    if kept <= 0:
        return replace(token, start=num_chars, shown=b"")
    if kept >= len(token.piece) or not token.shown:
        return token
    hidden = token.piece[kept:].encode("utf-8")
    return replace(token, shown=token.shown[: max(len(token.shown) - len(hidden), 0)])

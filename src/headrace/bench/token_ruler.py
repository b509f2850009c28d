# SPDX-License-Identifier: Apache-2.0
"""Makes texts of a wanted number of tokens: exactly where tokens can be counted, else by the average that a
server's usage shows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol

from headrace.core.errors import ConfigError

TokenCount = Callable[[str], Awaitable[int]]  # of a text sent as a prompt, BOS included where one is put
MAX_TRIES = 100
FIRST_GUESS = 1.1  # tokens a word


class TokenRuler(Protocol):
    @property
    def source(self) -> str:
        """Where its knowledge comes from, for the report."""
        ...

    async def fit(self, start: Sequence[str], num_tokens: int, more: Iterator[str]) -> list[str]:
        """`start` and as many words of `more` as give a text of `num_tokens`, joined by single spaces. Words
        at the end of `start` go when it is too long already."""
        ...


class CountingRuler:
    """Lengths are exact."""

    def __init__(self, count: TokenCount, source: str) -> None:
        self._count = count
        self._source = source

    @property
    def source(self) -> str:
        return self._source

    async def fit(self, start: Sequence[str], num_tokens: int, more: Iterator[str]) -> list[str]:
        words = list(start)
        tokens_per_word = FIRST_GUESS  # not kept: a text must not depend on those made before it
        words += itertools.islice(more, max(int(num_tokens / tokens_per_word) - len(words), 0))
        for number in range(MAX_TRIES):
            words = words or [next(more)]
            num = await self._count(" ".join(words))
            if num == num_tokens:
                return words
            if len(words) >= 32:
                tokens_per_word = num / len(words)
            num_words = abs(num_tokens - num) / tokens_per_word
            if num < num_tokens:
                words += itertools.islice(more, max(int(num_words), 1))
            else:
                # More and more go: the last token may be one that no word alone can be.
                num_out = math.ceil(num_words) + number // 8
                del words[max(len(words) - num_out, 0) :]
        raise ConfigError(
            f"found no text of exactly {num_tokens} tokens; does {self._source} count them right?"
        )


class AverageRuler:
    """Lengths are right on average; what each prompt really had stands in its answer's usage.

    Args:
        tokens_per_word: of this kind of text.
        num_extra: tokens that each prompt has besides, such as BOS.
    """

    def __init__(self, tokens_per_word: float, num_extra: float, source: str) -> None:
        self._tokens_per_word = tokens_per_word
        self._num_extra = num_extra
        self._source = source

    @property
    def source(self) -> str:
        return self._source

    async def fit(self, start: Sequence[str], num_tokens: int, more: Iterator[str]) -> list[str]:
        num_words = max(round((num_tokens - self._num_extra) / self._tokens_per_word), 1)
        return [*start[:num_words], *itertools.islice(more, max(num_words - len(start), 0))]

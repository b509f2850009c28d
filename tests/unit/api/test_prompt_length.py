# SPDX-License-Identifier: Apache-2.0
"""Far too long texts are refused by a small part of them, whatever a token holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.api.openai.prompts import check_could_fit
from headrace.core.errors import RequestError

LIMIT = 512


class CoarseTokenizer:
    """One token for so many characters."""

    def __init__(self, chars_per_token: int) -> None:
        self.chars_per_token = chars_per_token
        self.num_seen = 0

    def encode(self, text: str, *, add_bos: bool) -> list[int]:
        self.num_seen += len(text)
        return [0] * (len(text) // self.chars_per_token)


@pytest.mark.parametrize("chars_per_token", [1, 64, 200])
def test_far_too_long(chars_per_token: int) -> None:
    """G8: a run of spaces too."""
    tokenizer = CoarseTokenizer(chars_per_token)
    model = cast(Any, SimpleNamespace(tokenizer=tokenizer, max_model_len=LIMIT))
    with pytest.raises(RequestError, match="messages: there are at least") as error:
        check_could_fit(" " * 10_000_000, model, "messages")
    assert error.value.code == "context_length_exceeded"
    assert tokenizer.num_seen < 10 * LIMIT * max(chars_per_token, 8)
    check_could_fit(" " * (LIMIT * chars_per_token), model, "messages")

# SPDX-License-Identifier: Apache-2.0
"""The prompt as text and as pieces of it, one a token, for `echo`."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from headrace.api.openai.prompts import Prompt
from headrace.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Echo:
    text: str
    pieces: tuple[str, ...]  # one for each prompt token; joined they are the text


def echo_of(prompt: Prompt, tokenizer: Tokenizer) -> Echo:
    """Of a text, the text as sent: control tokens and the space that the tokenizer put before it are no
    part of it. Of ids, everything, control tokens by name."""
    shows_control = prompt.text is None
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces: list[str] = []
    for token in prompt.ids:
        if tokenizer.is_control(token):
            pieces.append(tokenizer.token_text(token) if shows_control else "")
        else:
            pieces.append(decoder.decode(tokenizer.token_bytes(token)))
    pieces[-1] += decoder.decode(b"", final=True)
    if prompt.text is not None and "".join(pieces) == " " + prompt.text:
        first = next(i for i, piece in enumerate(pieces) if piece)
        pieces[first] = pieces[first].removeprefix(" ")
    return Echo(text="".join(pieces) if prompt.text is None else prompt.text, pieces=tuple(pieces))

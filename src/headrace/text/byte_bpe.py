# SPDX-License-Identifier: Apache-2.0
"""Byte-level BPE through the `tokenizers` library: text becomes words, words become the byte alphabet,
and merges join it up to tokens. Control tokens are no part of it, so plain text never becomes one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.text.pretokenizers import PreTokenizer
from headrace.text.tokenizer import Place

if TYPE_CHECKING:
    import tokenizers

_ALL_BUT_SPACE_AND_NEWLINE = bytes(byte for byte in range(256) if byte not in b" \n")


@dataclass(frozen=True, slots=True, eq=False)
class ByteBpeEncoder:
    engine: tokenizers.Tokenizer

    def encode(self, text: str, place: Place) -> list[int]:
        # Of the library's ways in, the one that lets go of the GIL: a long text must not stop everybody.
        return self.engine.encode_batch_fast([text], add_special_tokens=False)[0].ids


def build_byte_bpe(
    vocab: dict[str, int], merges: list[tuple[str, str]], kind: PreTokenizer
) -> ByteBpeEncoder:
    """Raises ValueError when a merge names a token that the vocabulary lacks."""
    from tokenizers import Tokenizer, models, normalizers  # here: costs 15 ms

    try:
        model = models.BPE(vocab, merges, ignore_merges=kind.ignore_merges)
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(str(error)) from error
    engine = Tokenizer(model)
    if kind.nfc:
        engine.normalizer = normalizers.NFC()
    engine.pre_tokenizer = _word_splitter(kind.patterns)
    return ByteBpeEncoder(engine)


def _word_splitter(patterns: Sequence[str]) -> tokenizers.pre_tokenizers.PreTokenizer:
    from tokenizers import Regex, pre_tokenizers

    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*splits, alphabet])


def split_merges(merges: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs from entries of the form `left right`. Raises ValueError naming an entry of another form.

    Checked, joined and split as one text: several times faster than entry by entry."""
    text = "\n".join(merges)
    between = text.encode().translate(None, delete=_ALL_BUT_SPACE_AND_NEWLINE)
    if between + b"\n" != b" \n" * len(merges):
        for number, entry in enumerate(merges):
            if entry.count(" ") != 1 or "\n" in entry:
                raise ValueError(f"entry {number} is {entry!r}, not two tokens with one space between")
    parts = text.replace(" ", "\n").split("\n")
    return list(zip(parts[::2], parts[1::2], strict=False))

# SPDX-License-Identifier: Apache-2.0
"""A tokenizer of 256 bytes, some longer pieces and two control tokens, and a template that needs nothing
else: ids are easy to work out by hand."""

from __future__ import annotations

from headrace.text.tokenizer import Place, Tokenizer, Vocabulary

BOS, END = 256, 257
PIECES = ("ab", "HIJ", "KLMN", "Wed", "nesday", " the", "\n\n")  # ids 258, 259, ...
TEXTS = [*(f"<0x{byte:02X}>" for byte in range(256)), "<bos>", "<|end|>", *PIECES]
VOCAB_SIZE = len(TEXTS)


class ByteEncoder:
    """Bytes only, never the longer pieces."""

    def encode(self, text: str, place: Place) -> list[int]:
        return list(text.encode())


def piece_bytes(text: str) -> bytes:
    return bytes([int(text[3:5], 16)]) if text.startswith("<0x") else text.encode()


def byte_tokenizer(*, adds_bos: bool = False, encoder: ByteEncoder | None = None) -> Tokenizer:
    vocabulary = Vocabulary(
        texts=TEXTS,
        control={"<bos>": BOS, "<|end|>": END},
        literal={},
        bos_id=BOS,
        eos_ids=frozenset({END}),
        adds_bos=adds_bos,
    )
    return Tokenizer(vocabulary, encoder or ByteEncoder(), piece_bytes)


def piece(text: str) -> int:
    return 258 + PIECES.index(text)


def spell(text: str) -> list[int]:
    """Ids of a text, byte by byte."""
    return list(text.encode())


TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)

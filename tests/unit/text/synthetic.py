# SPDX-License-Identifier: Apache-2.0
"""Small vocabularies in GGUF's metadata form, written by hand: what each test needs of a model file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from headrace.text.byte_alphabet import CHAR_OF_BYTE
from headrace.text.tokenizer import Tokenizer, load_tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA3 = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
GEMMA = ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>")


@dataclass(frozen=True)
class MetadataOnly:
    """A checkpoint as far as text is concerned."""

    metadata: Mapping[str, object]
    path: Path = field(default=Path("synthetic.gguf"))


def spelled(text: str) -> str:
    """Text in the byte alphabet."""
    return "".join(CHAR_OF_BYTE[byte] for byte in text.encode())


def bpe_metadata(
    *,
    pre: str | None = "gpt-2",
    control: Sequence[str] = CHATML,
    literal: Sequence[str] = ("<think>", "</think>"),
    merges: Sequence[tuple[str, str]] = (("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), (" ", "w")),
    **extra: object,
) -> dict[str, object]:
    """Control tokens first, then user-defined ones, 256 bytes and what the merges make."""
    joined = [spelled(left + right) for left, right in merges]
    texts = [*control, *literal, *CHAR_OF_BYTE.values(), *joined]
    kinds = [CONTROL] * len(control) + [USER_DEFINED] * len(literal)
    kinds += [NORMAL] * (len(texts) - len(kinds))
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.merges": [f"{spelled(left)} {spelled(right)}" for left, right in merges],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": len(control) - 1,
        **{f"tokenizer.ggml.{key}": value for key, value in extra.items()},
    }
    return {key: value for key, value in metadata.items() if value is not None}


def spm_metadata(
    pieces: Sequence[str] = ("▁", "▁▁", "h", "e", "l", "o", "w", "he", "ll", "hell", "hello", "▁hello", "▁w"),
    *,
    control: Sequence[str] = ("<unk>", "<s>", "</s>"),
    literal: Sequence[str] = (),
    has_bytes: bool = True,
    scores: Sequence[float] | None = None,
    **extra: object,
) -> dict[str, object]:
    """Unknown and control tokens, user-defined ones, bytes, then pieces; longer ones are better."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)] if has_bytes else []
    texts = [*control, *literal, *bytes_, *pieces]
    kinds = [UNKNOWN] + [CONTROL] * (len(control) - 1) + [USER_DEFINED] * len(literal)
    kinds += [BYTE] * len(bytes_) + [NORMAL] * len(pieces)
    own = scores if scores is not None else [float(len(piece)) for piece in pieces]
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.scores": np.array([0.0] * (len(texts) - len(pieces)) + list(own), np.float32),
        **{f"tokenizer.ggml.{key}": value for key, value in extra.items()},
    }
    return {key: value for key, value in metadata.items() if value is not None}


def load(metadata: Mapping[str, object]) -> Tokenizer:
    return load_tokenizer(MetadataOnly(metadata))


def chatml_tokenizer() -> Tokenizer:
    return load(bpe_metadata())


def spm_tokenizer() -> Tokenizer:
    return load(spm_metadata())

# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint says of its tokenizer and chat template, without building either."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import ModelFileError
from headrace.weights.checkpoint import Checkpoint
from headrace.weights.json_text import read_json_file
from headrace.weights.string_array import StringArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialToken:
    id: int | None
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSummary:
    model: str | None  # GGUF: gpt2, llama, ...; HF: tokenizer.json, tokenizer.model
    pre: str | None  # GGUF's name of the pre-tokenizer
    vocab_size: int | None
    bos: SpecialToken | None
    eos: SpecialToken | None


def summarise_tokenizer(checkpoint: Checkpoint) -> tuple[TokenizerSummary, str | None]:
    """The tokenizer, and the source of the chat template if there is one."""
    config = checkpoint.metadata.get("hf_config")
    if isinstance(config, Mapping):
        return _of_folder(checkpoint.path, config)
    return _of_gguf(checkpoint.metadata)


def _of_gguf(metadata: Mapping[str, object]) -> tuple[TokenizerSummary, str | None]:
    tokens = metadata.get("tokenizer.ggml.tokens")
    vocabulary = tokens if isinstance(tokens, StringArray) else None
    summary = TokenizerSummary(
        model=_text(metadata.get("tokenizer.ggml.model")),
        pre=_text(metadata.get("tokenizer.ggml.pre")),
        vocab_size=None if vocabulary is None else len(vocabulary),
        bos=_gguf_token(vocabulary, metadata.get("tokenizer.ggml.bos_token_id")),
        eos=_gguf_token(vocabulary, metadata.get("tokenizer.ggml.eos_token_id")),
    )
    return summary, _text(metadata.get("tokenizer.chat_template"))


def _gguf_token(vocabulary: StringArray | None, token_id: object) -> SpecialToken | None:
    if type(token_id) is not int:
        return None
    known = vocabulary is not None and 0 <= token_id < len(vocabulary)
    return SpecialToken(id=token_id, text=vocabulary[token_id] if known and vocabulary is not None else None)


def _of_folder(folder: Path, config: Mapping[str, object]) -> tuple[TokenizerSummary, str | None]:
    settings_path = folder / "tokenizer_config.json"
    settings = read_json_file(settings_path) if settings_path.exists() else {}
    vocab_size = config.get("vocab_size")
    summary = TokenizerSummary(
        model=next((n for n in ("tokenizer.json", "tokenizer.model") if (folder / n).exists()), None),
        pre=None,
        vocab_size=vocab_size if type(vocab_size) is int else None,
        bos=_hf_token(config.get("bos_token_id"), settings.get("bos_token")),
        eos=_hf_token(config.get("eos_token_id"), settings.get("eos_token")),
    )
    return summary, _folder_template(folder, settings)


def _hf_token(token_id: object, entry: object) -> SpecialToken | None:
    """`entry` is the text, or an object that holds it as `content`; of several ids the first counts."""
    text = entry.get("content") if isinstance(entry, dict) else entry
    first = token_id[0] if isinstance(token_id, list) and token_id else token_id
    token = SpecialToken(id=first if type(first) is int else None, text=_text(text))
    return None if token.id is None and token.text is None else token


def _folder_template(folder: Path, settings: Mapping[str, object]) -> str | None:
    path = folder / "chat_template.jinja"
    if not path.exists():
        return _text(settings.get("chat_template"))
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(path, "file", f"cannot be read as text: {error}") from None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None

# SPDX-License-Identifier: Apache-2.0
"""A tokenizer from a folder in Hugging Face's layout: `tokenizer.json` run by the `tokenizers` library as
it is, special tokens and BOS settled by the files beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.errors import ModelFileError
from headrace.text import byte_alphabet, sentencepiece
from headrace.text.checkpoint_view import HasMetadata
from headrace.text.end_tokens import end_ids
from headrace.text.json_file import read_json_object
from headrace.text.tokenizer import Place, Tokenizer, Vocabulary

if TYPE_CHECKING:
    import tokenizers

FILE = "tokenizer.json"
CONFIG = "tokenizer_config.json"


@dataclass(frozen=True, slots=True, eq=False)
class HfEncoder:
    """Two of the same, because some kinds put a space before the first text only: `inner` is for text
    behind a control token."""

    first: tokenizers.Tokenizer
    inner: tokenizers.Tokenizer

    def encode(self, text: str, place: Place) -> list[int]:
        engine = self.first if place is Place.START else self.inner
        return engine.encode(text, add_special_tokens=False).ids


def load_hf_tokenizer(checkpoint: HasMetadata) -> Tokenizer:
    folder = checkpoint.path
    first = _open(folder)
    inner = _without_first_space(first)
    for engine in (first, inner):
        engine.encode_special_tokens = True  # in text, special tokens are text
        engine.no_truncation()
        engine.no_padding()
    pipeline = _Pipeline.of(first)
    vocabulary = _vocabulary(folder, checkpoint.metadata, first)
    return Tokenizer(
        vocabulary,
        HfEncoder(first, inner),
        _piece_bytes(folder, pipeline),
        adds_space_prefix=pipeline.adds_space,
    )


def _open(folder: Path) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Engine

    path = folder / FILE
    if not path.is_file():
        raise ModelFileError(folder, FILE, "is missing: save the fast form, or use a GGUF file")
    try:
        return Engine.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ModelFileError(path, FILE, f"cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class _Pipeline:
    """The steps around the vocabulary, by type; settings as tokenizer.json has them."""

    normalizers: tuple[Mapping[str, Any], ...]
    pre_tokenizers: tuple[Mapping[str, Any], ...]
    decoders: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, engine: tokenizers.Tokenizer) -> _Pipeline:
        return cls(_steps(engine.normalizer), _steps(engine.pre_tokenizer), _steps(engine.decoder))

    @property
    def adds_space(self) -> bool:
        return any(
            (step["type"] == "Prepend" and step["prepend"] == sentencepiece.SPACE)
            or (step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
            for step in self.normalizers + self.pre_tokenizers
        )


def _steps(component: Any) -> tuple[Mapping[str, Any], ...]:
    if component is None:
        return ()
    step = json.loads(component.__getstate__())
    for inside in ("normalizers", "pretokenizers", "decoders"):
        if step["type"] == "Sequence" and inside in step:
            return tuple(step[inside])
    return (step,)


def _without_first_space(engine: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The same, but text gets no space before it unless every piece of a text does."""
    if not any(
        step["type"] == "Metaspace" and step.get("prepend_scheme") == "first"
        for step in _Pipeline.of(engine).pre_tokenizers
    ):
        return engine
    from tokenizers import Tokenizer as Engine
    from tokenizers import pre_tokenizers

    inner = Engine.from_str(engine.to_str())
    steps = [
        pre_tokenizers.Metaspace(prepend_scheme="never", split=step.get("split", True))
        if step["type"] == "Metaspace"
        else _pre_tokenizer(step)
        for step in _Pipeline.of(engine).pre_tokenizers
    ]
    inner.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return inner


def _pre_tokenizer(step: Mapping[str, Any]) -> Any:
    from tokenizers import pre_tokenizers

    made = pre_tokenizers.Whitespace()
    made.__setstate__(json.dumps(step).encode())
    return made


def _piece_bytes(folder: Path, pipeline: _Pipeline) -> Callable[[str], bytes]:
    kinds = {step["type"] for step in pipeline.decoders}
    if "ByteLevel" in kinds:
        return byte_alphabet.piece_bytes
    if kinds & {"Metaspace", "ByteFallback"}:
        return sentencepiece.piece_bytes
    found = ", ".join(sorted(kinds)) or "none"
    raise ModelFileError(
        folder / FILE, "decoder", f"{found} is not supported; supported: ByteLevel, Metaspace, ByteFallback"
    )


def _vocabulary(folder: Path, metadata: Mapping[str, object], engine: tokenizers.Tokenizer) -> Vocabulary:
    ids = engine.get_vocab(with_added_tokens=True)
    texts = [""] * (max(ids.values(), default=-1) + 1)
    for text, token in ids.items():
        texts[token] = text
    added = engine.get_added_tokens_decoder()
    config = read_json_object(folder / CONFIG)
    control = {token.content: number for number, token in added.items() if token.special}
    bos = _named_token(config, "bos_token", ids)
    end = _named_token(config, "eos_token", ids)
    ends = _end_ids(folder, metadata, len(texts)) | ({end} - {None})
    control |= {texts[token]: token for token in (*ends, bos) if token is not None}
    return Vocabulary(
        texts=texts,
        control=control,
        literal={token.content: number for number, token in added.items() if token.content not in control},
        bos_id=bos,
        main_end_id=end,
        eos_ids=frozenset(token for token in ends if token is not None) | end_ids(control),
        adds_bos=_adds_bos(config, engine, bos),
        strips_left=frozenset(number for number, token in added.items() if token.special and token.lstrip),
        strips_right=frozenset(number for number, token in added.items() if token.special and token.rstrip),
    )


def _named_token(config: Mapping[str, object], key: str, ids: Mapping[str, int]) -> int | None:
    value = config.get(key)
    text = value.get("content") if isinstance(value, dict) else value
    return ids.get(text) if isinstance(text, str) else None


def _end_ids(folder: Path, metadata: Mapping[str, object], vocab_size: int) -> set[int | None]:
    """End tokens by id, from the generation settings and the model's configuration."""
    model = metadata.get("hf_config")
    ends: set[int | None] = set()
    for config in (read_json_object(folder / "generation_config.json"), model):
        value = config.get("eos_token_id") if isinstance(config, Mapping) else None
        ends.update(value if isinstance(value, list) else [value])
    for token in ends - {None}:
        if not isinstance(token, int) or not 0 <= token < vocab_size:
            raise ModelFileError(folder, "eos_token_id", f"{token!r} is not a token of this vocabulary")
    return ends - {None}


def _adds_bos(config: Mapping[str, object], engine: tokenizers.Tokenizer, bos: int | None) -> bool:
    told = config.get("add_bos_token")
    if isinstance(told, bool):
        return told and bos is not None
    return bos is not None and engine.encode("", add_special_tokens=True).ids[:1] == [bos]

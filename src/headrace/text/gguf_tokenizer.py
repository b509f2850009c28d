# SPDX-License-Identifier: Apache-2.0
"""A tokenizer from the metadata of a GGUF file (`tokenizer.ggml.*`). What the file lacks gets a default
only where llama.cpp, which defines the format, has one; everything else is an error naming the key."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from headrace.text import byte_alphabet, sentencepiece
from headrace.text.byte_bpe import ByteBpeEncoder, build_byte_bpe, split_merges
from headrace.text.checkpoint_view import HasMetadata, TokenizerFields, all_strings
from headrace.text.end_tokens import AMBIGUOUS_MARKER, END_MARKERS, end_ids
from headrace.text.pretokenizers import BY_NAME, DEFAULT_NAME, PreTokenizer
from headrace.text.sentencepiece import SPACE, SentencePieceEncoder, SpaceRules
from headrace.text.tokenizer import Tokenizer, Vocabulary

MODEL = "tokenizer.ggml.model"
PRE = "tokenizer.ggml.pre"
TOKENS = "tokenizer.ggml.tokens"
TYPES = "tokenizer.ggml.token_type"
SCORES = "tokenizer.ggml.scores"
MERGES = "tokenizer.ggml.merges"
ADD_BOS = "tokenizer.ggml.add_bos_token"
END_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))


class TokenKind(IntEnum):
    """Values of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


Kinds = npt.NDArray[np.generic]  # (V,) TokenKind of each token


def load_gguf_tokenizer(checkpoint: HasMetadata) -> Tokenizer:
    fields = TokenizerFields(checkpoint.path, checkpoint.metadata)
    model = fields.text(MODEL)
    build = BUILDERS.get(model or "")
    if build is None:
        found = "is missing" if model is None else f"{model!r} is not supported"
        raise fields.fail(MODEL, f"{found}; supported: {', '.join(BUILDERS)}")
    strings = fields.strings(TOKENS)
    if not strings:
        raise fields.fail(TOKENS, "is missing or empty: the file has no vocabulary")
    texts = all_strings(strings)
    return build(fields, texts, _read_kinds(fields, len(texts)))


def _read_kinds(fields: TokenizerFields, count: int) -> Kinds:
    kinds = fields.numbers(TYPES, count)
    if kinds is not None:
        return kinds
    warnings.warn(
        f"{fields.path}: {TYPES} is missing: all tokens but BOS and EOS count as ordinary text", stacklevel=2
    )
    return np.full(count, TokenKind.NORMAL, np.int32)


def _build_byte_bpe(fields: TokenizerFields, texts: list[str], kinds: Kinds) -> Tokenizer:
    kind = _pre_tokenizer(fields)
    vocabulary = _vocabulary(fields, texts, kinds, default_ends={}, adds_bos=kind.adds_bos, spell=str)
    encoder = _byte_bpe_encoder(fields, texts, vocabulary.control, kind)
    return Tokenizer(vocabulary, encoder, byte_alphabet.piece_bytes)


def _pre_tokenizer(fields: TokenizerFields) -> PreTokenizer:
    name = fields.text(PRE)
    if name is None:
        warnings.warn(
            f"{fields.path}: {PRE} is missing: text is cut into words by the {DEFAULT_NAME!r} rules, which"
            " may not be the model's own: answers may be worse. Convert the model again with a current"
            " converter",
            stacklevel=2,
        )
        name = DEFAULT_NAME
    kind = BY_NAME.get(name)
    if kind is None:
        raise fields.fail(PRE, f"{name!r} is not known; known: {', '.join(sorted(BY_NAME))}")
    return kind


def _byte_bpe_encoder(
    fields: TokenizerFields, texts: list[str], control: Mapping[str, int], kind: PreTokenizer
) -> ByteBpeEncoder:
    merges = fields.strings(MERGES)
    if merges is None:
        raise fields.fail(MERGES, f"is missing, and {MODEL} 'gpt2' cannot do without")
    vocab = _ids_by_text(texts, control)
    try:
        return build_byte_bpe(vocab, split_merges(all_strings(merges)), kind)
    except ValueError as error:
        raise fields.fail(MERGES, str(error)) from error


def _build_sentencepiece(fields: TokenizerFields, texts: list[str], kinds: Kinds) -> Tokenizer:
    defaults = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
    vocabulary = _vocabulary(fields, texts, kinds, default_ends=defaults, adds_bos=True, spell=_spelled)
    scores = fields.numbers(SCORES, len(texts))
    if scores is None:
        raise fields.fail(SCORES, f"is missing, and {MODEL} 'llama' cannot do without")
    spaces = SpaceRules(
        adds_prefix=fields.flag("tokenizer.ggml.add_space_prefix", True),
        removes_extra=fields.flag("tokenizer.ggml.remove_extra_whitespaces", False),
    )
    unknown = fields.token_id("tokenizer.ggml.unknown_token_id", len(texts))
    encoder = SentencePieceEncoder(
        _joinable(texts, kinds),
        [float(score) for score in scores.tolist()],
        byte_ids=_byte_ids(texts, kinds),
        unknown_id=0 if unknown is None else unknown,
        spaces=spaces,
        unused=frozenset(texts[token] for token in _tokens_of(kinds, TokenKind.UNUSED)),
    )
    return Tokenizer(vocabulary, encoder, sentencepiece.piece_bytes, adds_space_prefix=spaces.adds_prefix)


def _spelled(text: str) -> str:
    """A user-defined token as text has it."""
    return text.replace(SPACE, " ")


def _joinable(texts: list[str], kinds: Kinds) -> dict[str, int]:
    """The tokens that text may become, by text."""
    ids = dict(zip(texts, range(len(texts)), strict=True))
    for token in np.flatnonzero((kinds != TokenKind.NORMAL) & (kinds != TokenKind.UNUSED)).tolist():
        if ids.get(texts[token]) == token:
            del ids[texts[token]]
    return ids


def _byte_ids(texts: list[str], kinds: Kinds) -> list[int] | None:
    by_text = {texts[token]: token for token in _tokens_of(kinds, TokenKind.BYTE)}
    ids = [by_text.get(f"<0x{byte:02X}>") for byte in range(256)]
    known = [token for token in ids if token is not None]
    return known if len(known) == 256 else None


def _tokens_of(kinds: Kinds, *wanted: TokenKind) -> list[int]:
    tokens: list[int] = np.flatnonzero(np.isin(kinds, wanted)).tolist()
    return tokens


def _ids_by_text(texts: list[str], without: Mapping[str, int]) -> dict[str, int]:
    ids = dict(zip(texts, range(len(texts)), strict=True))
    for text in without:
        ids.pop(text, None)
    return ids


def _vocabulary(
    fields: TokenizerFields,
    texts: list[str],
    kinds: Kinds,
    *,
    default_ends: Mapping[str, int],
    adds_bos: bool,
    spell: Callable[[str], str],
) -> Vocabulary:
    """
    Args:
        default_ends: ids that the format defines for keys the file lacks.
        adds_bos: the format's default.
        spell: from a user-defined token's text to what stands in a user's text.
    """

    def named(key: str) -> int | None:
        found = fields.token_id(key, len(texts))
        default = default_ends.get(key, len(texts))
        return found if found is not None or default >= len(texts) else default

    bos = named("tokenizer.ggml.bos_token_id")
    named_ends = {token for key in END_KEYS if (token := named(key)) is not None}
    control = {texts[token]: token for token in _tokens_of(kinds, TokenKind.CONTROL, TokenKind.UNKNOWN)}
    control |= {texts[token]: token for token in (*named_ends, bos) if token is not None}
    literal = {texts[token]: token for token in _tokens_of(kinds, TokenKind.USER_DEFINED)}
    # Files call end markers user-defined by mistake; no user's text may become one.
    ends = {text: literal.pop(text) for text in END_MARKERS if text in literal}
    tag = ends.pop(AMBIGUOUS_MARKER, None)
    control |= ends
    shown = {} if tag is None or tag in named_ends else {AMBIGUOUS_MARKER: tag}
    return Vocabulary(
        texts=texts,
        control=control | shown,
        shown=frozenset(shown.values()),
        literal={spell(text): token for text, token in literal.items() if text not in control},
        bos_id=bos,
        main_end_id=named(END_KEYS[0]),
        eos_ids=end_ids(control) | named_ends,
        adds_bos=fields.flag(ADD_BOS, adds_bos),
    )


BUILDERS: dict[str, Callable[[TokenizerFields, list[str], Kinds], Tokenizer]] = {
    "gpt2": _build_byte_bpe,
    "llama": _build_sentencepiece,
}

# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back, for any kind of vocabulary. Text that a user typed is never read as a
control token unless the caller asks for that with `parse_special`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from headrace.core.errors import RequestError
from headrace.text.checkpoint_view import HasMetadata
from headrace.text.markers import MarkerSplitter


class Place(Enum):
    """What stands before a piece of text: kinds of vocabulary differ in where they add a space."""

    START = "nothing"
    AFTER_CONTROL = "a control token"
    INSIDE = "text"


class Encoder(Protocol):
    """Plain text to ids; knows no control tokens."""

    def encode(self, text: str, place: Place) -> list[int]: ...


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Vocabulary:
    """The tokens of a model and what they are for. Texts are as the model file has them."""

    texts: Sequence[str]  # (V,)
    control: Mapping[str, int]  # steer the model, never come from a user's text
    shown: frozenset[int] = frozenset()  # of these, the ones that belong to an answer's text all the same
    literal: Mapping[str, int]  # matched as written before anything else, in every text
    bos_id: int | None
    main_end_id: int | None = None  # the one end token that chat templates know by name
    eos_ids: frozenset[int]  # every token that ends an answer
    adds_bos: bool
    strips_left: frozenset[int] = frozenset()  # tokens that swallow spaces before them
    strips_right: frozenset[int] = frozenset()  # and behind them


class Tokenizer:
    """
    Args:
        vocabulary: the tokens.
        encoder: plain text to ids.
        piece_bytes: what an ordinary token's text stands for.
        adds_space_prefix: the encoder puts a space before text, which `decode` takes away again.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        encoder: Encoder,
        piece_bytes: Callable[[str], bytes],
        *,
        adds_space_prefix: bool = False,
    ) -> None:
        self.vocabulary = vocabulary
        self.adds_space_prefix = adds_space_prefix
        self._encoder = encoder
        self._piece_bytes = piece_bytes
        markers = {**vocabulary.literal, **vocabulary.control}
        self._control_ids = frozenset(vocabulary.control.values()) - vocabulary.shown
        self._literal_ids = frozenset(vocabulary.literal.values())
        self._written = {token: text for text, token in markers.items()}
        self._literals = MarkerSplitter(vocabulary.literal)
        self._markers = MarkerSplitter(markers)
        self._bytes: dict[int, bytes] = {}  # a cache of token_bytes

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary.texts)

    @property
    def bos_id(self) -> int | None:
        return self.vocabulary.bos_id

    @property
    def eos_ids(self) -> frozenset[int]:
        return self.vocabulary.eos_ids

    @property
    def adds_bos(self) -> bool:
        return self.vocabulary.adds_bos

    def encode(self, text: str, *, add_bos: bool | None = None, parse_special: bool = False) -> list[int]:
        """Ids of a text.

        Args:
            add_bos: whether BOS comes first; None: as the model file says. A BOS that the text itself
                begins with (under `parse_special`) is not doubled.
            parse_special: read control tokens that stand in the text, e.g. `<|im_start|>`.

        Raises RequestError for text that is no valid Unicode.
        """
        check_unicode(text, param="prompt")
        ids = self.encode_pieces(self.split_markers(text) if parse_special else [text])
        return self.with_bos(ids) if (self.adds_bos if add_bos is None else add_bos) else ids

    def encode_pieces(self, pieces: Sequence[str | int]) -> list[int]:
        """Ids of plain text with token ids in between. Neighbouring texts must have been joined."""
        ids: list[int] = []
        for number, piece in enumerate(pieces):
            if isinstance(piece, int):
                ids.append(piece)
                continue
            text = self._swallow_spaces(piece, pieces[number - 1 : number], pieces[number + 1 : number + 2])
            ids += self._encode_plain(text, Place.AFTER_CONTROL if number else Place.START)
        return ids

    def _encode_plain(self, text: str, place: Place) -> list[int]:
        ids: list[int] = []
        for piece in self._literals.split(text):
            ids += [piece] if isinstance(piece, int) else self._encoder.encode(piece, place)
            place = Place.INSIDE
        return ids

    def _swallow_spaces(self, text: str, before: Sequence[str | int], after: Sequence[str | int]) -> str:
        if self.vocabulary.strips_right.intersection(before):
            text = text.lstrip()
        if self.vocabulary.strips_left.intersection(after):
            text = text.rstrip()
        return text

    def with_bos(self, ids: list[int]) -> list[int]:
        if self.bos_id is None or ids[:1] == [self.bos_id]:
            return ids
        return [self.bos_id, *ids]

    def split_markers(self, text: str) -> list[str | int]:
        """Text cut at control tokens (ids), not at literal ones, which `encode_pieces` finds itself."""
        pieces: list[str | int] = []
        done = 0
        for start, end, token in self._markers.find(text):
            if token not in self._literal_ids:
                pieces += [text[done:start], token]
                done = end
        return [piece for piece in [*pieces, text[done:]] if piece != ""]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of ids as a whole: what `encode` made them from. Bytes that are no valid UTF-8
        become U+FFFD. An answer that goes on after a prompt is decoded by `text.detokenizer`."""
        from headrace.text.detokenizer import Detokenizer

        detokenizer = Detokenizer(self, skip_special=skip_special, continues=False)
        return detokenizer.push(ids) + detokenizer.flush()

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token adds to a text. Several tokens may share a character."""
        known = self._bytes.get(token)
        if known is None:
            text = self.token_text(token)
            written = self._written.get(token)
            known = self._piece_bytes(text) if written is None else written.encode()
            self._bytes[token] = known
        return known

    def token_text(self, token: int) -> str:
        """The token as the model file writes it."""
        if not 0 <= token < self.vocab_size:
            raise RequestError(f"token id {token} is outside the vocabulary of {self.vocab_size} tokens")
        return self.vocabulary.texts[token]

    def is_control(self, token: int) -> bool:
        return token in self._control_ids


def check_unicode(text: str, *, param: str) -> None:
    """Raises RequestError for half of a surrogate pair, which is no character and has no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{param} holds a lone surrogate (U+{ord(text[error.start]):04X} at character {error.start}),"
            " which is half a character; send the whole pair or U+FFFD",
            param=param,
        ) from None


def load_tokenizer(checkpoint: HasMetadata) -> Tokenizer:
    """The tokenizer of an opened model: from a GGUF file's metadata, or from `tokenizer.json` of a folder."""
    if checkpoint.path.is_dir():
        from headrace.text.hf_tokenizer import load_hf_tokenizer

        return load_hf_tokenizer(checkpoint)
    from headrace.text.gguf_tokenizer import load_gguf_tokenizer

    return load_gguf_tokenizer(checkpoint)

# SPDX-License-Identifier: Apache-2.0
"""Streaming text: whole characters only, nothing lost, however ids are cut into pushes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import bpe_metadata, load, spm_metadata

from headrace.text.detokenizer import Detokenizer
from headrace.text.tokenizer import Tokenizer

BPE = load(bpe_metadata())
SPM = load(spm_metadata(literal=["▁▁▁", "\n"]))
TOKENIZERS = {"bpe": BPE, "spm": SPM}

HARD = "🫠🥹龜🇩🇪👨\u200d👩\u200d👧\u200d👦é e\u0301 hello"


def stream(tokenizer: Tokenizer, pushes: list[list[int]], **options: bool) -> list[str]:
    detokenizer = Detokenizer(tokenizer, **options)
    return [*(detokenizer.push(ids) for ids in pushes), detokenizer.flush()]


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
def test_characters_of_several_tokens_leave_whole(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(HARD, add_bos=False)
    deltas = stream(tokenizer, [[token] for token in ids], continues=False)
    assert "".join(deltas) == HARD
    assert "\ufffd" not in "".join(deltas)
    assert "" in deltas[:-1]  # some pushes do end inside a character


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_deltas_joined_are_the_whole_text(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    skip_special = data.draw(st.booleans())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=5)))
    pushes = [ids[start:end] for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    deltas = stream(tokenizer, pushes, skip_special=skip_special, continues=False)
    assert "".join(deltas) == tokenizer.decode(ids, skip_special=skip_special)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.text(max_size=40))
def test_any_text_comes_back(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    if name == "spm":
        text = text.replace("▁", "")  # stands for a space there
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(raw=st.binary(max_size=20))
def test_bytes_that_are_no_text_become_replacement_characters(raw: bytes) -> None:
    ids = [BPE.vocabulary.texts.index(char) for char in map(_char, raw)]
    expected = raw.decode("utf-8", errors="replace")
    assert BPE.decode(ids) == expected
    assert "".join(stream(BPE, [[token] for token in ids])) == expected


def _char(byte: int) -> str:
    from headrace.text.byte_alphabet import CHAR_OF_BYTE

    return CHAR_OF_BYTE[byte]


def test_an_unfinished_character_is_flushed() -> None:
    ids = BPE.encode("🫠")[:-1]
    assert stream(BPE, [ids]) == ["", "\ufffd"]


def test_the_leading_space_is_taken_from_a_whole_text_only() -> None:
    ids = SPM.encode("hello", add_bos=True)
    assert SPM.decode(ids) == "hello"
    assert stream(SPM, [ids]) == [" hello", ""]
    assert "".join(stream(SPM, [[token] for token in SPM.encode(" w w")], continues=False)) == " w w"


def test_control_tokens_are_left_out_unless_wanted() -> None:
    ids = BPE.encode("<|im_start|>hello<|im_end|>", parse_special=True)
    assert BPE.decode(ids) == "hello"
    assert BPE.decode(ids, skip_special=False) == "<|im_start|>hello<|im_end|>"

# SPDX-License-Identifier: Apache-2.0
"""SentencePiece-style vocabularies: joining by score, spaces, bytes; against the sentencepiece package."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import pytest
from synthetic import UNUSED, load, spm_metadata

from headrace.core.errors import ModelFileError
from headrace.text.tokenizer import Tokenizer

# Public domain: the opening of "Moby-Dick" (1851), and letters that are rare in it.
CORPUS = """Call me Ishmael. Some years ago - never mind how long precisely - having little or no money in
my purse, and nothing particular to interest me on shore, I thought I would sail about a little
and see the watery part of the world. It is a way I have of driving off the spleen and
regulating the circulation. Whenever I find myself growing grim about the mouth; whenever it is
a damp, drizzly November in my soul; whenever I find myself involuntarily pausing before coffin
warehouses, and bringing up the rear of every funeral I meet; then, I account it high time to
get to sea as soon as I can. aaaa aaaaa aaaaaaaa abababab ababa
今日は良い天気です 今日は 天気 naïve café"""
ALPHABET = "aaaabbehlowstIC .,;-  \n\t今日は天気é🫠"


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_text(token) for token in tokenizer.encode(text, add_bos=False)]


def test_best_score_joins_first() -> None:
    assert pieces(load(spm_metadata()), "hello w") == ["▁hello", "▁w"]
    worse = spm_metadata(["▁", "a", "b", "c", "ab", "bc"], scores=[0, 0, 0, 0, 1, 2])
    assert pieces(load(worse), "abc") == ["▁", "a", "bc"]


def test_equal_scores_join_leftmost_first() -> None:
    tokenizer = load(spm_metadata(["▁", "a", "aa"], scores=[0, 0, 1]))
    assert pieces(tokenizer, "aaa") == ["▁", "aa", "a"]


def test_characters_without_a_token_become_bytes() -> None:
    tokenizer = load(spm_metadata())
    assert pieces(tokenizer, "hé") == ["▁", "h", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("hé\n\0")) == "hé\n\0"


def test_a_run_without_byte_tokens_is_one_unknown() -> None:
    tokenizer = load(spm_metadata(has_bytes=False))
    assert pieces(tokenizer, "héüo x") == ["▁", "h", "<unk>", "o", "▁", "<unk>"]


def test_space_prefix() -> None:
    assert pieces(load(spm_metadata(add_space_prefix=False)), "hello") == ["hello"]
    tokenizer = load(spm_metadata())
    assert pieces(tokenizer, " hello") == ["▁▁", "hello"]
    for text in ("hello", " hello", "  hello  w", "", " "):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_text_behind_a_control_token_gets_the_prefix_too() -> None:
    tokenizer = load(spm_metadata())
    ids = tokenizer.encode("hello</s>hello", add_bos=False, parse_special=True)
    assert [tokenizer.token_text(token) for token in ids] == ["▁hello", "</s>", "▁hello"]


def test_extra_spaces_go_where_the_file_says() -> None:
    assert pieces(load(spm_metadata(remove_extra_whitespaces=True)), "  hello   w ") == ["▁hello", "▁w"]


def test_defaults_of_the_format() -> None:
    tokenizer = load(spm_metadata())
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.adds_bos) == (1, {2}, True)
    assert not load(spm_metadata(add_bos_token=False)).adds_bos


def test_user_defined_tokens_are_matched_before_anything() -> None:
    tokenizer = load(spm_metadata(literal=["\n\n", "▁▁▁", "ell"], add_space_prefix=False))
    assert pieces(tokenizer, "hello") == ["h", "ell", "o"]
    assert pieces(tokenizer, "h   o\n\no") == ["h", "▁▁▁", "o", "\n\n", "o"]
    assert tokenizer.decode(tokenizer.encode("h   o\n\n")) == "h   o\n\n"


def test_an_unused_piece_gives_way_to_its_halves() -> None:
    metadata = spm_metadata(["▁", "a", "b", "c", "ab", "abc"], scores=[0, 0, 0, 0, 1, 2])
    kinds = metadata["tokenizer.ggml.token_type"]
    assert isinstance(kinds, np.ndarray)
    kinds[-1] = UNUSED
    assert pieces(load(metadata), "abc") == ["▁", "ab", "c"]


def test_missing_scores_are_refused() -> None:
    metadata = spm_metadata()
    del metadata["tokenizer.ggml.scores"]
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.scores: is missing"):
        load(metadata)


def test_a_token_across_a_space_is_found() -> None:
    """Words are cut apart for speed only where no token could reach across."""
    tokenizer = load(spm_metadata(["▁", ">", "<", "▁<", ">▁<", "▁▁"], scores=[0, 0, 0, 1, 5, 2]))
    assert pieces(tokenizer, "> <> <") == ["▁", ">▁<", ">▁<"]


@pytest.fixture(params=[True, False], ids=["bytes", "no-bytes"], scope="module")
def trained(request: pytest.FixtureRequest) -> tuple[object, Tokenizer]:
    """A tiny model trained by the sentencepiece package, and ours from its vocabulary."""
    spm = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.splitlines()),
        model_writer=model,
        model_type="bpe",
        vocab_size=420 if request.param else 180,
        byte_fallback=request.param,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=["<sep>"],
        minloglevel=2,
    )
    theirs = spm.SentencePieceProcessor(model_proto=model.getvalue())
    return theirs, load(gguf_form(theirs))


def gguf_form(model: object) -> dict[str, object]:
    """As converters to GGUF write a sentencepiece model."""
    tests = (("unknown", 2), ("control", 3), ("unused", 5), ("byte", 6))
    size = model.vocab_size()  # type: ignore[attr-defined]
    kinds = [
        next((kind for name, kind in tests if getattr(model, f"is_{name}")(token)), 1)
        for token in range(size)
    ]
    texts = [model.id_to_piece(token) for token in range(size)]  # type: ignore[attr-defined]
    kinds[texts.index("<sep>")] = 4
    scores = [model.get_score(token) for token in range(size)]  # type: ignore[attr-defined]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.unknown_token_id": 0,
    }


def test_same_ids_as_sentencepiece(trained: tuple[object, Tokenizer], tmp_path: Path) -> None:
    theirs, ours = trained
    draw = random.Random(7)
    texts = CORPUS.splitlines()
    texts += ["".join(draw.choice(ALPHABET) for _ in range(draw.randint(1, 60))) for _ in range(1500)]
    texts += ["".join(draw.choice("ab") for _ in range(40)) for _ in range(300)]
    for text in texts:
        text = text.replace("\n", "")  # sentencepiece treats a line at a time
        expected = theirs.encode(text)  # type: ignore[attr-defined]
        assert ours.encode(text, add_bos=False) == expected, text


def test_same_text_as_sentencepiece(trained: tuple[object, Tokenizer]) -> None:
    theirs, ours = trained
    draw = random.Random(8)
    for _ in range(500):
        text = "".join(draw.choice(ALPHABET) for _ in range(draw.randint(1, 40)))
        ids = theirs.encode(text)  # type: ignore[attr-defined]
        if not any(ours.is_control(token) for token in ids):
            assert ours.decode(ids) == theirs.decode(ids)  # type: ignore[attr-defined]

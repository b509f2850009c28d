# SPDX-License-Identifier: Apache-2.0
"""Byte-level BPE from GGUF metadata: merges, words, refusals."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from synthetic import CHATML, LLAMA3, bpe_metadata, load, spelled

from headrace.core.errors import ModelFileError, RequestError
from headrace.text.byte_bpe import split_merges
from headrace.text.pretokenizers import BY_NAME, PRE_TOKENIZERS


def words(pre: str, text: str) -> list[str]:
    """How a kind cuts text, seen through a vocabulary whose every byte is a token: by the library's own
    pre-tokenizer."""
    tokenizer = load(bpe_metadata(pre=pre))
    engine = tokenizer._encoder.engine  # type: ignore[attr-defined]
    assert engine.pre_tokenizer is not None
    return [text[start:end] for _, (start, end) in engine.pre_tokenizer.pre_tokenize_str(text)]


def test_merges_are_applied_in_their_order() -> None:
    tokenizer = load(bpe_metadata())
    ids = tokenizer.encode("hello well")
    assert [tokenizer.token_text(token) for token in ids] == ["hello", spelled(" w"), "e", "ll"]


def test_text_of_any_bytes_comes_back() -> None:
    tokenizer = load(bpe_metadata())
    text = "naïve 日本 🫠 \0 \ufffd \u202e a\u0301 \r\n\t"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("pre", sorted(BY_NAME))
def test_every_kind_keeps_all_text(pre: str) -> None:
    text = "I'm DON'T 12345 ½ x_y  two\n\n\tтри 日本語カタカナ 한국어 🇩🇪! $3.50 (a+b) camelCase e.org/?q=1  "
    assert "".join(words(pre, text)) == text


def test_names_are_unique() -> None:
    assert len(BY_NAME) == sum(len(row.names) for row in PRE_TOKENIZERS)


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "I'm 1234 DON'T", ["I", "'m", " 1234", " DON", "'", "T"]),
        ("smollm", "a 1234", ["a", " ", "1", "2", "3", "4"]),
        ("llama-bpe", "DON'T 12345\n\n x", ["DON", "'T", " ", "123", "45", "\n\n", " x"]),
        ("qwen2", "DON'T 123", ["DON", "'T", " ", "1", "2", "3"]),
        ("deepseek-v3", "12345 _x", ["123", "45", " _", "x"]),
        ("deepseek-coder", "ab12, c\nd", ["ab", "1", "2", ",", " c", "\n", "d"]),
        ("tekken", "camelCase12", ["camel", "Case", "1", "2"]),
        ("gpt-4o", "camelCase's 1234", ["camel", "Case's", " ", "123", "4"]),
        ("falcon", "ab123456 c++", ["ab", "123", "456", " c", "++"]),
        ("default", "12345", ["123", "45"]),
        ("qwen35", "नमस्ते", ["नमस्ते"]),
    ],
)
def test_words(pre: str, text: str, expected: list[str]) -> None:
    assert words(pre, text) == expected


def test_a_word_that_is_a_token_may_go_before_merges() -> None:
    merges = [("a", "b"), ("b", "c"), ("ab", "c")]
    ignoring = load(bpe_metadata(pre="llama-bpe", merges=merges))
    assert ignoring.encode("abc", add_bos=False) == [ignoring.vocab_size - 1]
    # "bc" joins first here, so that merges alone never make "abc"
    merges = [("b", "c"), ("a", "b"), ("ab", "c")]
    assert len(load(bpe_metadata(pre="llama-bpe", merges=merges)).encode("abc", add_bos=False)) == 1
    assert len(load(bpe_metadata(pre="dbrx", merges=merges)).encode("abc", add_bos=False)) == 2


def test_composed_form_is_made_only_where_the_kind_says() -> None:
    for pre, is_composed in (("qwen2", True), ("command-r", True), ("smollm", False), ("llama-bpe", False)):
        tokenizer = load(bpe_metadata(pre=pre))
        assert (tokenizer.decode(tokenizer.encode("e\u0301")) == "é") == is_composed


def test_unknown_kind_is_named_with_those_known() -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.pre: 'no-such-pre' is not known.*llama-bpe"):
        load(bpe_metadata(pre="no-such-pre"))


def test_missing_kind_warns_and_uses_the_default() -> None:
    with pytest.warns(UserWarning, match=r"tokenizer\.ggml\.pre is missing.*'default'"):
        tokenizer = load(bpe_metadata(pre=None))
    text = "I'm 12345  x"
    assert tokenizer.encode(text) == load(bpe_metadata(pre="default")).encode(text)


def test_a_good_file_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(bpe_metadata())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"merges": None}, r"tokenizer\.ggml\.merges: is missing"),
        ({"merges": ["he"]}, r"tokenizer\.ggml\.merges: entry 0 is 'he'"),
        ({"merges": ["h e", "a b c"]}, r"tokenizer\.ggml\.merges: entry 1 is 'a b c'"),
        ({"merges": ["a b c", "h"]}, r"tokenizer\.ggml\.merges: entry 0 is 'a b c'"),
        ({"merges": ["q w"]}, r"tokenizer\.ggml\.merges: .*qw"),
        ({"merges": [["h", "e"]]}, r"tokenizer\.ggml\.merges: must be an array of strings"),
        ({"merges": 3}, r"tokenizer\.ggml\.merges: must be an array"),
        ({"tokens": None}, r"tokenizer\.ggml\.tokens: is missing"),
        ({"model": "t5"}, r"tokenizer\.ggml\.model: 't5' is not supported; supported: gpt2, llama"),
        ({"model": None}, r"tokenizer\.ggml\.model: is missing"),
        ({"pre": 7}, r"tokenizer\.ggml\.pre: must be a string"),
        (
            {"token_type": np.array([1], np.int32)},
            r"tokenizer\.ggml\.token_type: has 1 entries for \d+ tokens",
        ),
        ({"eos_token_id": 9999}, r"tokenizer\.ggml\.eos_token_id: is 9999, outside the vocabulary"),
        ({"bos_token_id": "x"}, r"tokenizer\.ggml\.bos_token_id: must be a token id"),
        ({"add_bos_token": 1}, r"tokenizer\.ggml\.add_bos_token: must be true or false"),
    ],
)
def test_broken_metadata_is_refused_by_name(change: dict[str, object], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        load(bpe_metadata() | {f"tokenizer.ggml.{key}": value for key, value in change.items()})


def test_missing_token_types_warn() -> None:
    metadata = bpe_metadata()
    del metadata["tokenizer.ggml.token_type"]
    with pytest.warns(UserWarning, match="token_type is missing"):
        tokenizer = load(metadata)
    assert tokenizer.is_control(0)
    assert tokenizer.is_control(2)
    assert not tokenizer.is_control(1)


def test_merges_in_pairs() -> None:
    assert split_merges([]) == []
    assert split_merges(["a b", "Ġ x"]) == [("a", "b"), ("Ġ", "x")]


def test_control_text_is_text_unless_asked_for() -> None:
    tokenizer = load(bpe_metadata())
    plain = tokenizer.encode("<|im_start|>hello")
    assert not any(tokenizer.is_control(token) for token in plain)
    assert tokenizer.encode("<|im_start|>hello", parse_special=True)[0] == 1
    assert tokenizer.decode(plain) == "<|im_start|>hello"


def test_a_control_token_is_never_made_from_a_whole_word() -> None:
    """Kinds that look words up before merging must not find control tokens there."""
    tokenizer = load(bpe_metadata(pre="llama-bpe", control=(*LLAMA3, "world")))
    assert not any(tokenizer.is_control(token) for token in tokenizer.encode("world", add_bos=False))


def test_user_defined_tokens_are_always_matched() -> None:
    tokenizer = load(bpe_metadata())
    assert tokenizer.encode("<think>")[0] == len(CHATML)
    assert tokenizer.decode(tokenizer.encode("a<think>b</think>")) == "a<think>b</think>"


def test_the_longest_marker_wins() -> None:
    tokenizer = load(bpe_metadata(control=("<a", "<a>", "<a>b")))
    assert tokenizer.encode("<a>bc<a", parse_special=True)[0] == 2
    assert tokenizer.encode("<a>bc<a", parse_special=True)[-1] == 0


def test_end_tokens() -> None:
    markers = ("<|begin_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")
    assert load(bpe_metadata(control=markers)).eos_ids == {1, 2, 3}
    harmony = ("<|start|>", "<|end|>", "<|return|>", "<|call|>")
    assert load(bpe_metadata(control=harmony, eos_token_id=2)).eos_ids == {2, 3}
    named = bpe_metadata(control=("a", "b", "c"), eot_token_id=1)
    assert load(named).eos_ids == {1, 2}


def test_an_end_marker_called_user_defined_is_control_all_the_same() -> None:
    tokenizer = load(bpe_metadata(control=("<s>", "<e>"), literal=("<|im_end|>",)))
    assert tokenizer.eos_ids == {1, 2}
    assert tokenizer.is_control(2)
    assert 2 not in tokenizer.encode("<|im_end|>")


def test_bos() -> None:
    tokenizer = load(bpe_metadata(add_bos_token=True))
    hello = tokenizer.encode("hello", add_bos=False)
    assert tokenizer.encode("hello") == [0, *hello]
    assert tokenizer.encode("<|endoftext|>hello", parse_special=True) == [0, *hello]
    assert load(bpe_metadata()).encode("hello", add_bos=True) == [0, *hello]
    assert load(bpe_metadata(pre="llama-bpe")).adds_bos
    assert not load(bpe_metadata(pre="llama-bpe", add_bos_token=False)).adds_bos


@pytest.mark.parametrize("text", ["\ud83d", "a\udc00b", "\ud83d\ud83d"])
def test_half_a_surrogate_pair_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="lone surrogate") as caught:
        load(bpe_metadata()).encode(text)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("token", [-1, 10**6])
def test_ids_outside_the_vocabulary_are_refused(token: int) -> None:
    tokenizer = load(bpe_metadata())
    for call in (tokenizer.token_bytes, tokenizer.token_text, lambda t: tokenizer.decode([t])):
        with pytest.raises(RequestError, match="outside the vocabulary"):
            call(token)


def test_long_strange_text_ends_in_bounded_time() -> None:
    tokenizer = load(bpe_metadata(pre="qwen2"))
    for unit in ("\u0301", " ", "a", "<", "\n"):
        assert tokenizer.encode(unit * 50_000)

# SPDX-License-Identifier: Apache-2.0
"""Tokenizers and templates of folders in Hugging Face's layout, built here with the tokenizers library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import templates
from synthetic import CHATML, LLAMA3, MetadataOnly, bpe_metadata, load, spm_metadata
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Engine

from headrace.core.errors import ModelFileError
from headrace.text.chat_template import ChatTemplate, load_chat_template
from headrace.text.tokenizer import Tokenizer, load_tokenizer

SPM_MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("▁", "hello"), ("▁", "w")]


def byte_level() -> Engine:
    """The vocabulary of `bpe_metadata`, as Hugging Face has it."""
    metadata = bpe_metadata()
    texts = metadata["tokenizer.ggml.tokens"]
    assert isinstance(texts, list)
    merges = [tuple(entry.split(" ")) for entry in metadata["tokenizer.ggml.merges"]]  # type: ignore[attr-defined]
    engine = Engine(models.BPE({text: token for token, text in enumerate(texts)}, merges))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens([AddedToken(text, special=True) for text in CHATML])
    engine.add_tokens([AddedToken(text, special=False, normalized=False) for text in ("<think>", "</think>")])
    return engine


def metaspace(scheme: str) -> Engine:
    """A Llama-style vocabulary; `legacy` prepends a space to every piece of text, `first` to the first."""
    texts = spm_metadata()["tokenizer.ggml.tokens"]
    assert isinstance(texts, list)
    vocab = {text: token for token, text in enumerate(texts)}
    engine = Engine(models.BPE(vocab, SPM_MERGES, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if scheme == "legacy":
        engine.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        engine.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    engine.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    engine.add_special_tokens(["<unk>", "<s>", "</s>"])
    engine.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return engine


def saved(folder: Path, engine: Engine | None, **files: object) -> Path:
    if engine is not None:
        engine.save(str(folder / "tokenizer.json"))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    return folder


def opened(folder: Path, config: dict[str, object] | None = None) -> Tokenizer:
    return load_tokenizer(MetadataOnly({"hf_config": config or {}}, folder))


TEXTS = ["hello well", "naïve 🫠", "<|im_end|>hello<think>", "  two\n", "\0"]


def test_byte_level_gives_the_ids_of_the_gguf_form(tmp_path: Path) -> None:
    config = {"bos_token": "<|endoftext|>", "eos_token": {"content": "<|im_end|>"}}
    ours = opened(saved(tmp_path, byte_level(), tokenizer_config=config))
    gguf = load(bpe_metadata())
    for text in TEXTS:
        for parse_special in (False, True):
            ids = ours.encode(text, parse_special=parse_special)
            assert ids == gguf.encode(text, parse_special=parse_special)
            assert ours.decode(ids, skip_special=False) == text
    assert (ours.bos_id, ours.eos_ids, ours.adds_bos) == (0, {0, 2}, False)
    template = ChatTemplate(templates.CHATML, ours)
    message = {"role": "user", "content": "x<|im_end|>"}
    assert template.encode([message]) == ChatTemplate(templates.CHATML, gguf).encode([message])


@pytest.mark.parametrize("scheme", ["legacy", "first", "never", "always"])
def test_spaces_before_pieces_are_those_of_the_library(scheme: str, tmp_path: Path) -> None:
    engine = metaspace(scheme)
    ours = opened(saved(tmp_path, engine, tokenizer_config={"bos_token": "<s>", "eos_token": "</s>"}))
    for text in ("hello w", " hello", "hello</s>hello", "</s>hello", "h é\n"):
        assert ours.encode(text, parse_special=True) == engine.encode(text).ids, text
    assert ours.adds_bos
    assert ours.decode(ours.encode("hello w")) == "hello w"


def test_control_text_is_text_in_llama_style_too(tmp_path: Path) -> None:
    ours = opened(saved(tmp_path, metaspace("first"), tokenizer_config={"bos_token": "<s>"}))
    assert 2 not in ours.encode("hello</s>")
    assert ours.decode(ours.encode("hello</s>")) == "hello</s>"


def test_bos_as_the_files_say(tmp_path: Path) -> None:
    told = saved(tmp_path, metaspace("first"), tokenizer_config={"bos_token": "<s>", "add_bos_token": False})
    assert not opened(told).adds_bos
    saved(tmp_path, None, tokenizer_config={"bos_token": "<s>"})
    assert opened(told).adds_bos


def test_end_tokens_of_all_files(tmp_path: Path) -> None:
    folder = saved(tmp_path, byte_level(), generation_config={"eos_token_id": [1, 2]})
    assert opened(folder, {"eos_token_id": 5}).eos_ids == {0, 1, 2, 5}
    with pytest.raises(ModelFileError, match="eos_token_id: 99999"):
        opened(folder, {"eos_token_id": 99999})


def test_markers_that_swallow_spaces(tmp_path: Path) -> None:
    engine = byte_level()
    engine.add_special_tokens([AddedToken("<|r|>", special=True, rstrip=True)])
    engine.add_special_tokens([AddedToken("<|l|>", special=True, lstrip=True)])
    ours = opened(saved(tmp_path, engine))
    for text in ("a <|r|> \n b", "a \n<|l|> b", "<|r|>  <|l|>"):
        assert ours.encode(text, parse_special=True) == engine.encode(text).ids, text


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"tokenizer\.json: is missing"),
        ({"tokenizer": {"version": "1.0"}}, r"tokenizer\.json: cannot be read"),
    ],
)
def test_broken_folders(files: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=message):
        opened(saved(tmp_path, None, **files))


def test_unknown_decoders_are_refused(tmp_path: Path) -> None:
    engine = byte_level()
    engine.decoder = decoders.WordPiece()
    with pytest.raises(ModelFileError, match="decoder: WordPiece is not supported"):
        opened(saved(tmp_path, engine))


def test_templates_of_a_folder(tmp_path: Path) -> None:
    folder = saved(tmp_path, byte_level())
    tokenizer = opened(folder)

    def shown(**options: object) -> str | None:
        template = load_chat_template(MetadataOnly({}, folder), tokenizer)
        user = {"role": "user", "content": "hi"}
        return None if template is None else tokenizer.decode(template.encode([user], **options))  # type: ignore[arg-type]

    assert shown() is None
    saved(tmp_path, None, chat_template={"chat_template": "from chat_template.json"})
    assert shown() == "from chat_template.json"
    named = [{"name": "default", "template": "default"}, {"name": "tool_use", "template": "with tools"}]
    saved(tmp_path, None, tokenizer_config={"chat_template": named})
    assert (shown(), shown(tools=[{}])) == ("default", "with tools")
    (tmp_path / "chat_template.jinja").write_text("from jinja", encoding="utf-8")
    assert shown() == "from jinja"
    (tmp_path / "chat_template.jinja").write_text("{% if %}", encoding="utf-8")
    with pytest.raises(ModelFileError, match=r"chat_template\.jinja: chat template is broken"):
        shown()


def test_llama3_style_pre_tokenizer_of_a_folder(tmp_path: Path) -> None:
    """Split and ByteLevel in sequence, as Llama 3 has it."""
    gguf = load(bpe_metadata(pre="llama-bpe", control=LLAMA3))
    engine = byte_level()
    split = pre_tokenizers.Split(Regex(r"\p{N}{1,3}|\p{L}+"), "isolated")
    engine.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    ours = opened(saved(tmp_path, engine))
    assert ours.decode(ours.encode("hello 12345")) == gguf.decode(gguf.encode("hello 12345"))

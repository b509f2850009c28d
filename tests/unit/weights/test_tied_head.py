# SPDX-License-Identifier: Apache-2.0
"""The tied flag and the stored tensors in all combinations: one documented outcome each."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from folder_builder import LLAMA, write_folder

from headrace.core.errors import ModelFileError
from headrace.weights.open import open_checkpoint

A = np.arange(12).reshape(6, 2)
B = A + 100
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def opened(folder: Path, tied: bool | None, tensors: dict[str, np.ndarray], model_type: str = "llama"):
    config = LLAMA | {"model_type": model_type} | ({} if tied is None else {"tie_word_embeddings": tied})
    checkpoint = open_checkpoint(write_folder(folder, config, tensors))
    values = {
        name: tensor.data.view(np.float32).reshape(tensor.shape)
        for name, tensor in checkpoint.tensors.items()
    }
    return checkpoint.metadata["hf_config"]["tie_word_embeddings"], values


def test_tied_and_no_head(tmp_path: Path) -> None:
    tied, values = opened(tmp_path, True, {EMBED: A})
    assert tied is True
    assert list(values) == ["token_embd.weight"]


def test_tied_and_the_same_head(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tied, values = opened(tmp_path, True, {EMBED: A, HEAD: A})
    assert tied is True
    assert list(values) == ["token_embd.weight"]
    assert not caplog.records


def test_tied_and_another_head(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tied, values = opened(tmp_path, True, {EMBED: A, HEAD: B})
    assert tied is False
    assert np.array_equal(values["output.weight"], B)
    assert np.array_equal(values["token_embd.weight"], A)
    assert "lm_head.weight differs from the embedding" in caplog.text


def test_tied_and_only_a_head(tmp_path: Path) -> None:
    tied, values = opened(tmp_path, True, {HEAD: B})
    assert tied is True
    assert list(values) == ["token_embd.weight"]
    assert np.array_equal(values["token_embd.weight"], B)


def test_not_tied_with_a_head(tmp_path: Path) -> None:
    tied, values = opened(tmp_path, False, {EMBED: A, HEAD: B})
    assert tied is False
    assert np.array_equal(values["output.weight"], B)


def test_not_tied_with_the_same_head(tmp_path: Path) -> None:
    tied, values = opened(tmp_path, False, {EMBED: A, HEAD: A})
    assert tied is False
    assert set(values) == {"token_embd.weight", "output.weight"}


def test_not_tied_and_no_head(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="tie_word_embeddings is false, so nothing makes") as caught:
        opened(tmp_path, False, {EMBED: A})
    assert caught.value.field == "lm_head.weight"


def test_flag_absent(tmp_path: Path) -> None:
    """The default is that of the model's config class in transformers."""
    with pytest.raises(ModelFileError, match=r"lm_head\.weight"):
        opened(tmp_path / "llama", None, {EMBED: A})
    assert opened(tmp_path / "gemma", None, {EMBED: A}, "gemma3_text")[0] is True

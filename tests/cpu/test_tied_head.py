# SPDX-License-Identifier: Apache-2.0
"""Cases K7 and K8: whichever way the tied flag and the stored tensors agree or not, the logits are those of
what transformers loads from the same folder, or there is an error; never a random head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import safetensors.torch
import torch
import transformers as hf
from paged_rows import score, worst_error
from tiny_models import VOCAB, save_hf

from budgets import LOGPROB_REFERENCE
from headrace.core.errors import ModelFileError
from headrace.runner.backends.reference import load_reference_backend
from headrace.weights.open import open_checkpoint

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
IDS = np.random.default_rng(5).integers(0, VOCAB, 20).tolist()


def write_variant(folder: Path, *, tied: bool, drop: str | None = None, same_head: bool = False) -> Path:
    """The tiny Llama, which has a head of its own, with its flag and its two matrices changed."""
    save_hf("llama", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": tied}))
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    if same_head:
        tensors[HEAD] = tensors[EMBEDDING].clone()
    if drop is not None:
        del tensors[drop]
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize(
    "variant",
    [
        {"tied": True, "drop": HEAD},
        {"tied": True, "drop": EMBEDDING},
        {"tied": True, "same_head": True},
        {"tied": True},
        {"tied": False},
    ],
    ids=str,
)
def test_logits_are_those_of_transformers(variant: dict[str, Any], tmp_path: Path) -> None:
    folder = write_variant(tmp_path, **variant)
    with torch.no_grad():
        model = hf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        oracle = [model(torch.tensor([IDS])).logits[0].numpy()]
    backend = load_reference_backend(open_checkpoint(folder), max_model_len=32, num_blocks=4)
    assert worst_error(score(backend, [IDS], [{0: len(IDS)}]), oracle) < LOGPROB_REFERENCE


@pytest.mark.parametrize("drop", [HEAD, EMBEDDING])
def test_untied_without_one_of_the_two_is_an_error(drop: str, tmp_path: Path) -> None:
    folder = write_variant(tmp_path, tied=False, drop=drop)
    with pytest.raises(ModelFileError, match=r"lm_head\.weight|token_embd\.weight"):
        load_reference_backend(open_checkpoint(folder), max_model_len=32, num_blocks=4)

# SPDX-License-Identifier: Apache-2.0
"""The two real files against transformers on the same dequantised weights: perplexity of WikiText-2. What
transformers gives was recorded by record_wikitext_nll.py; one window is computed anew to hold it to that."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from budgets import PERPLEXITY_REAL_MODEL
from headrace.bench.perplexity import cut_windows, first_scored, perplexity, token_nlls
from headrace.runner.backends.cpu import load_cpu_backend
from headrace.text.tokenizer import load_tokenizer
from headrace.weights.checkpoint import Checkpoint
from headrace.weights.open import open_checkpoint

DATA = Path(__file__).parent.parent / "data"
WINDOW = 512


def windows_of(checkpoint: Checkpoint) -> list[tuple[int, ...]]:
    tokenizer = load_tokenizer(checkpoint)
    ids = tokenizer.encode((DATA / "wikitext2-excerpt.txt").read_text(encoding="utf-8"))
    return cut_windows(ids, WINDOW, tokenizer.bos_id if tokenizer.adds_bos else None)


def recorded_nlls(name: str) -> list[float]:
    """The mean of each window's scored tokens."""
    return list(json.loads((DATA / "wikitext2-nll.json").read_text())[name])


@pytest.mark.parametrize(("name", "fixture"), [("smollm2", "smollm2_path"), ("gemma3-270m", "gemma3_path")])
def test_perplexity(name: str, fixture: str, request: pytest.FixtureRequest) -> None:
    checkpoint = open_checkpoint(request.getfixturevalue(fixture))
    expected = recorded_nlls(name)
    backend = load_cpu_backend(checkpoint, num_threads=2, max_model_len=WINDOW, kv_cache_bytes=64 << 20)
    try:
        windows = windows_of(checkpoint)[: len(expected)]
        scored = [token_nlls(backend, tokens, first_scored(WINDOW)) for tokens in windows]
    finally:
        backend.close()
    ours = perplexity([nll for window in scored for nll in window]).value
    assert ours == pytest.approx(np.exp(np.mean(expected)), rel=PERPLEXITY_REAL_MODEL)


def test_what_was_recorded_is_what_transformers_gives(smollm2_path: Path) -> None:
    pytest.importorskip("torch")
    from real_oracle import nlls, transformers_twin

    checkpoint = open_checkpoint(smollm2_path)
    computed = nlls(transformers_twin(checkpoint), windows_of(checkpoint)[0], first_scored(WINDOW)).mean()
    assert computed == pytest.approx(recorded_nlls("smollm2")[0], rel=1e-4)

# SPDX-License-Identifier: Apache-2.0
"""The two real files against transformers on the same dequantised weights: perplexity of WikiText-2."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from real_oracle import nlls, transformers_twin

from budgets import PERPLEXITY_REAL_MODEL
from headrace.bench.perplexity import cut_windows, first_scored, perplexity, token_nlls
from headrace.runner.backends.cpu import load_cpu_backend
from headrace.text.tokenizer import load_tokenizer
from headrace.weights.checkpoint import Checkpoint
from headrace.weights.open import open_checkpoint

TEXT = Path(__file__).parent.parent / "data" / "wikitext2-excerpt.txt"
WINDOW = 512
NUM_WINDOWS = 2


@pytest.fixture(scope="module", params=["smollm2_path", "gemma3_path"])
def checkpoint(request: pytest.FixtureRequest) -> Checkpoint:
    return open_checkpoint(request.getfixturevalue(request.param))


@pytest.fixture(scope="module")
def windows(checkpoint: Checkpoint) -> list[tuple[int, ...]]:
    tokenizer = load_tokenizer(checkpoint)
    ids = tokenizer.encode(TEXT.read_text(encoding="utf-8"))
    return cut_windows(ids, WINDOW, tokenizer.bos_id if tokenizer.adds_bos else None)[:NUM_WINDOWS]


@pytest.fixture(scope="module")
def oracle_nlls(checkpoint: Checkpoint, windows: list[tuple[int, ...]]) -> list[np.ndarray]:
    model = transformers_twin(checkpoint)
    return [nlls(model, tokens, first_scored(WINDOW)) for tokens in windows]


def test_perplexity(
    checkpoint: Checkpoint, windows: list[tuple[int, ...]], oracle_nlls: list[np.ndarray]
) -> None:
    backend = load_cpu_backend(checkpoint, num_threads=2, max_model_len=WINDOW, kv_cache_bytes=64 << 20)
    try:
        scored = [token_nlls(backend, tokens, first_scored(WINDOW)) for tokens in windows]
    finally:
        backend.close()
    ours = perplexity([nll for window in scored for nll in window]).value
    expected = perplexity(np.concatenate(oracle_nlls).tolist()).value
    assert ours == pytest.approx(expected, rel=PERPLEXITY_REAL_MODEL)

# SPDX-License-Identifier: Apache-2.0
"""Every architecture, from both file formats, against transformers' float32 forward pass: however the tokens
are cut into steps and rows, each place's log probabilities are those of one full pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from paged_rows import Chunks, score, worst_error
from tiny_models import TINY_MODELS, VOCAB, oracle_logits, save_gguf, save_hf

from budgets import LOGPROB_CPU, LOGPROB_REFERENCE
from headrace.core.plan import Backend, OutputPlan, RowPlan, StepPlan
from headrace.runner.backends.cpu import load_cpu_backend
from headrace.runner.backends.reference import load_reference_backend
from headrace.weights.checkpoint import Checkpoint
from headrace.weights.open import open_checkpoint

MAX_MODEL_LEN = 128
LENGTHS = (37, 21, 45)  # all longer than the windows of 8, none a multiple of a block

SCHEDULES: dict[str, Chunks] = {
    "one step each": [{0: 37}, {1: 21}, {2: 45}],
    "chunks": [{0: 1}, {0: 7}, {0: 16}, {0: 13}, {1: 20}, {1: 1}, {2: 33}, {2: 12}],
    "one token a step": [{0: 1, 1: 1, 2: 1}] * 21 + [{0: 1, 2: 1}] * 16 + [{2: 1}] * 8,
    "mixed rows": [
        {0: 9, 2: 44},
        {2: 1, 0: 1, 1: 17},
        {1: 1, 0: 20},
        {0: 1, 1: 1},
        {1: 2, 0: 6},
    ],
}


def _reference(checkpoint: Checkpoint) -> Backend:
    return load_reference_backend(checkpoint, max_model_len=MAX_MODEL_LEN, num_blocks=64, block_size=4)


def _cpu(checkpoint: Checkpoint) -> Backend:
    return load_cpu_backend(checkpoint, num_threads=2, max_model_len=MAX_MODEL_LEN, kv_cache_bytes=4 << 20)


BACKENDS: dict[str, tuple[Callable[[Checkpoint], Backend], float]] = {
    "reference": (_reference, LOGPROB_REFERENCE),
    "cpu": (_cpu, LOGPROB_CPU),
}
SAVERS: dict[str, Callable[[str, Path], Path]] = {"hf": save_hf, "gguf": save_gguf}


@pytest.fixture(scope="module")
def sequences() -> list[list[int]]:
    rng = np.random.default_rng(7)
    return [rng.integers(0, VOCAB, length).tolist() for length in LENGTHS]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Checkpoint]:
    """A tiny model, saved once a format."""
    folder = tmp_path_factory.mktemp("tiny")
    saved: dict[tuple[str, str], Path] = {}

    def load(name: str, file_format: str) -> Checkpoint:
        key = (name, file_format)
        if key not in saved:
            saved[key] = SAVERS[file_format](name, folder / f"{name}.{file_format}")
        return open_checkpoint(saved[key])

    return load


@pytest.mark.parametrize("backend_name", BACKENDS)
@pytest.mark.parametrize("file_format", SAVERS)
@pytest.mark.parametrize("name", TINY_MODELS)
def test_log_probabilities(
    name: str,
    file_format: str,
    backend_name: str,
    stored: Callable[[str, str], Checkpoint],
    sequences: list[list[int]],
) -> None:
    load, budget = BACKENDS[backend_name]
    oracle = oracle_logits(name, sequences)
    backend = load(stored(name, file_format))
    try:
        errors = {
            how: worst_error(score(backend, sequences, steps), oracle) for how, steps in SCHEDULES.items()
        }
    finally:
        backend.close()
    assert max(errors.values()) < budget, errors


@pytest.mark.parametrize("name", ["llama", "gemma3-stretched-capped"])
def test_reference_logits_themselves(
    name: str, stored: Callable[[str, str], Checkpoint], sequences: list[list[int]]
) -> None:
    """Not only their softmax: a constant added to all logits would pass the test above."""
    backend = load_reference_backend(stored(name, "hf"), max_model_len=64, num_blocks=4)
    outputs = tuple(OutputPlan(i, None, 0, -1) for i in range(LENGTHS[0]))
    row = RowPlan(1, tuple(sequences[0]), 0, (3, 0, 2), outputs)
    expected = oracle_logits(name, sequences)[0]
    error = np.abs(backend.logits(StepPlan((row,))) - expected).max() / expected.std()
    assert error < LOGPROB_REFERENCE


@pytest.mark.parametrize("length", [7, 8, 9, 16, 17, 40])
def test_gemma3_around_its_window(length: int, stored: Callable[[str, str], Checkpoint]) -> None:
    """Case K6: below, at and past the window of 8, where local and global layers part ways."""
    ids = np.random.default_rng(length).integers(0, VOCAB, length).tolist()
    oracle = oracle_logits("gemma3", [ids])
    for file_format in SAVERS:
        backend = _reference(stored("gemma3", file_format))
        for steps in ([{0: length}], [{0: length - 1}, {0: 1}], [{0: 1}] * length):
            assert worst_error(score(backend, [ids], steps), oracle) < LOGPROB_REFERENCE

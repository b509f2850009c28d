# SPDX-License-Identifier: Apache-2.0
"""The reference and the native backend keep the contract that the fake one keeps, on a tiny model of each
architecture and on a real one, whose weights are packed differently."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_models import save_gguf

from headrace.runner.backends.cpu import load_cpu_backend
from headrace.runner.backends.reference import load_reference_backend
from headrace.weights.open import open_checkpoint
from unit.backend_conformance import check_backend

# One of each architecture; Gemma's windows are shorter than the longest prompt.
TINY = ("llama", "qwen2", "qwen3", "gemma3")

# The same sums in another order: float32 throughout.
REFERENCE_ATOL = 1e-4
# K and V rounded to float16, activations to int8, in products whose split depends on the company.
CPU_ATOL = 0.05


@pytest.mark.parametrize("name", TINY)
def test_reference_backend(name: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(save_gguf(name, tmp_path / "model.gguf"))
    backend = load_reference_backend(checkpoint, max_model_len=256, num_blocks=24, block_size=4)
    check_backend(backend, atol=REFERENCE_ATOL)
    backend.close()


@pytest.mark.parametrize("name", TINY)
def test_cpu_backend(name: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(save_gguf(name, tmp_path / "model.gguf"))
    backend = load_cpu_backend(checkpoint, num_threads=2, max_model_len=256, kv_cache_bytes=2**20)
    check_backend(backend, atol=CPU_ATOL)
    backend.close()


def test_cpu_backend_on_packed_weights(smollm2_path: Path) -> None:
    checkpoint = open_checkpoint(smollm2_path)
    backend = load_cpu_backend(checkpoint, num_threads=2, max_model_len=256, kv_cache_bytes=2**25)
    check_backend(backend, atol=CPU_ATOL)
    backend.close()

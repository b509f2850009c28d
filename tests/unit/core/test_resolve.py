# SPDX-License-Identifier: Apache-2.0
"""Derived configuration: what is left open is worked out, with a reason; contradictions are refused."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.config import EngineConfig, ModelConfig
from headrace.core.errors import ConfigError
from headrace.core.machine import Machine, this_machine
from headrace.core.resolve import ModelShape, ResolvedConfig, resolve

GIB = 2**30
SHAPE = ModelShape(context_length=8192, kv_bytes_per_token=1024)  # a full context takes 8 MiB


def resolved(available_bytes: int = 8 * GIB, shape: ModelShape = SHAPE, **options: Any) -> ResolvedConfig:
    return resolve(ModelConfig(**options), shape, Machine(6, available_bytes, "available memory"))


def test_left_open() -> None:
    got = resolved()
    assert (got.num_threads.value, got.num_threads.reason) == (6, "physical cores this process may use")
    assert (got.max_model_len.value, got.max_model_len.reason) == (8192, "the model's context length")
    assert got.kv_cache_bytes.value == 16 * 8 * 2**20, "no more than 16 sequences can use"
    assert got.num_blocks == 16 * 512
    assert len(got.lines()) == 3


def test_little_memory_shortens_the_context() -> None:
    got = resolved(available_bytes=4 * 1000 * 1024)
    assert got.kv_cache_bytes.value == 1000 * 1024
    assert got.max_model_len.value == 992, "whole blocks of 16"
    assert got.num_blocks == 62
    assert "what kv_cache_bytes holds" in got.max_model_len.reason


def test_as_asked() -> None:
    got = resolved(num_threads=3, max_model_len=100, kv_cache_bytes=GIB)
    assert [r.value for r in (got.num_threads, got.max_model_len, got.kv_cache_bytes)] == [3, 100, GIB]
    assert {r.reason for r in (got.num_threads, got.max_model_len, got.kv_cache_bytes)} == {"as asked"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_model_len": 8193}, "more than the model's context length, 8192"),
        ({"max_model_len": 2000, "kv_cache_bytes": 2**20}, "needs kv_cache_bytes of at least 2048000"),
        ({"kv_cache_bytes": 16 * 1024 - 1}, "holds no block of 16 tokens"),
        ({"num_threads": 0}, "num_threads must be at least 1"),
        ({"num_threads": 49}, "num_threads = 49 is too many for 6 cores"),
        ({"max_model_len": -5}, "max_model_len must be at least 1"),
        ({"backend": "gpu"}, "'cpu' or 'reference', got 'gpu'"),
    ],
)
def test_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        resolved(**options)


def test_step_limits() -> None:
    with pytest.raises(ConfigError, match="at least max_num_seqs"):
        EngineConfig(max_num_seqs=20, max_num_batched_tokens=19)
    with pytest.raises(ConfigError, match="at least 1"):
        EngineConfig(max_num_seqs=0)


def test_this_machine() -> None:
    machine = this_machine()
    assert 1 <= machine.num_cores <= 4096
    assert machine.available_bytes > 2**20

# SPDX-License-Identifier: Apache-2.0
"""The measuring client against Headrace's own server around the fake backend."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from headrace.bench.serve import ServePlan, measure
from headrace.bench.serve_report import ServeReport
from headrace.runner.backends.fake import FakeBackend
from unit.api.byte_tokenizer import VOCAB_SIZE, byte_tokenizer
from unit.api.live_server import LiveServer, serve_backend


@pytest.fixture
def server() -> Iterator[LiveServer]:
    backend = FakeBackend(vocab_size=VOCAB_SIZE, max_model_len=2048, block_size=16, num_blocks=1024)
    live = LiveServer(lambda: serve_backend(backend, byte_tokenizer())).wait_ready()
    yield live
    live.finish()


def measured(server: LiveServer, workload: str, **plan: int) -> ServeReport:
    return asyncio.run(measure(ServePlan(url=server.url, workload=workload, output_tokens=4, **plan), None))


def test_unique_prompts_find_nothing_cached_and_shared_ones_do(server: LiveServer) -> None:
    unique = measured(server, "unique", num_requests=3)
    assert (unique.num_ok, unique.num_prompt_tokens, unique.faults) == (3, 3 * 270, ())
    assert unique.num_output_tokens == 3 * 4
    assert unique.facts.ignores_eos
    assert unique.prefix_hit_rate is not None
    assert unique.prefix_hit_rate < 0.05
    shared = measured(server, "shared", num_requests=3)
    assert shared.num_prompt_tokens == 3 * 1025
    assert shared.prefix_hit_rate is not None
    assert shared.prefix_hit_rate >= 960 / 1025  # the shared part's whole blocks
    again = measured(server, "unique", num_requests=3)
    assert again.prefix_hit_rate is not None
    assert again.prefix_hit_rate > 0.9  # the same seed, the same prompts

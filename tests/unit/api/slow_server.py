# SPDX-License-Identifier: Apache-2.0
"""Servers that can be caught at whatever they are doing: steps that take a while, prompts in small chunks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from headrace.core.config import EngineConfig
from headrace.engine.stats import EngineStats
from headrace.text.tokenizer import Tokenizer
from unit.api.byte_tokenizer import END, VOCAB_SIZE, byte_tokenizer, spell
from unit.api.live_server import LiveServer, running
from unit.api.reciting_backend import RecitingBackend

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
# Steps of 30 ms that compute at most 16 tokens: a prompt of 800 takes one and a half seconds.
STEP_S = 0.03
CHUNK = 16
LONG_PROMPT = "p" * 800


@contextlib.contextmanager
def slow_server(
    *, num_seqs: int = 4, tokenizer: Tokenizer | None = None, options: Any = None, **config: Any
) -> Iterator[LiveServer]:
    backend = RecitingBackend(spell("x" * 900), end=END, vocab_size=VOCAB_SIZE, step_s=STEP_S)
    engine = EngineConfig(max_num_seqs=num_seqs, max_num_batched_tokens=CHUNK, **config)
    with running(backend, tokenizer or byte_tokenizer(), options, config=engine) as server:
        yield server


def stats_of(server: LiveServer) -> EngineStats:
    model = server.server._model
    assert model is not None
    return model.engine.stats()


def wait_until(holds: Callable[[], bool], within_s: float = 5.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)

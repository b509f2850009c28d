# SPDX-License-Identifier: Apache-2.0
"""Real models for tests, fetched through the catalogue once and kept under HEADRACE_HOME."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from headrace.weights.catalogue import pull

# What a shell starts in the background is deaf to Ctrl-C, and so would be the processes that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Every load packs its weights, but in tests about packed weights that were kept, which name a folder of their
# own. Processes that tests start see it, too.
os.environ["HEADRACE_PACKED_CACHE_BYTES"] = "0"


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1, GGUF."""
    return pull("smollm2", progress=False)


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M, Q4_K_M, GGUF."""
    return pull("gemma3-270m", progress=False)

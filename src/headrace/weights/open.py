# SPDX-License-Identifier: Apache-2.0
"""Opens a model on disk, whatever its file format."""

from __future__ import annotations

from pathlib import Path

from headrace.weights.checkpoint import Checkpoint
from headrace.weights.gguf import open_gguf


def open_checkpoint(path: Path) -> Checkpoint:
    """A GGUF file, the first shard of one, or a folder in Hugging Face's layout."""
    return open_gguf(path)

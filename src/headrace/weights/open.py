# SPDX-License-Identifier: Apache-2.0
"""Opens a model on disk, whatever its file format."""

from __future__ import annotations

from pathlib import Path

from headrace.core.errors import ModelFileError
from headrace.weights.checkpoint import Checkpoint


def open_checkpoint(path: Path) -> Checkpoint:
    """A GGUF file, the first shard of one, or a folder in Hugging Face's layout.

    Raises ModelFileError, naming file and field, for whatever is broken or not supported."""
    if path.is_dir():
        from headrace.weights.hf_folder import open_hf_folder

        return open_hf_folder(path)
    if path.suffix == ".safetensors":
        message = f"tensors alone are not a model; open the folder {path.parent} with its config.json"
        raise ModelFileError(path, "file", message)
    from headrace.weights.gguf import open_gguf

    return open_gguf(path)

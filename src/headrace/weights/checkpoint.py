# SPDX-License-Identifier: Apache-2.0
"""One view of a model on disk, whatever its file format: metadata and named tensors as views into
memory-mapped files. Tensor names are GGUF's (`blk.0.attn_q.weight`); shapes are row-major."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace.weights.formats import QuantFormat


@dataclass(frozen=True, slots=True)
class StoredTensor:
    name: str
    shape: tuple[int, ...]  # row-major: a matrix is (rows, columns); GGUF's own order reversed
    format: QuantFormat
    data: npt.NDArray[np.uint8]  # (bytes,) read-only view into the file's memory map
    file: Path

    @property
    def num_elements(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


def tensor_field(name: str) -> str:
    """What a one-line error calls a tensor of this name."""
    return f"tensor {name if name.isprintable() else repr(name)}"


class Checkpoint(Protocol):
    @property
    def path(self) -> Path: ...

    @property
    def metadata(self) -> Mapping[str, object]:
        """GGUF: its key-value pairs. HF folder: `config.json` under the key `hf_config`."""
        ...

    @property
    def tensors(self) -> Mapping[str, StoredTensor]: ...

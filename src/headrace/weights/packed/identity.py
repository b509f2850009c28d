# SPDX-License-Identifier: Apache-2.0
"""A name for what a model's packed weights depend on: the layout's version, each tensor's name, type, shape
and samples of its bytes, and when its files were last written or changed and how large they are. Not seen: a
change of bytes that are not sampled which leaves size and both of the file system's times as they were. To
read every byte instead would take longer than to pack a small model."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.weights.checkpoint import Checkpoint

SAMPLE_BYTES = 1024


def identity_of(checkpoint: Checkpoint, layout: int) -> str | None:
    """Forty hexadecimal digits; None where a file is gone or cannot be asked for its times.

    Args:
        layout: the version of the packed layout, `_native.PACKED_LAYOUT`.
    """
    tensors = sorted(checkpoint.tensors.values(), key=lambda tensor: tensor.name)
    digest = hashlib.blake2b(repr(layout).encode(), digest_size=20)
    try:
        for file in sorted({tensor.file for tensor in tensors}):
            digest.update(_stamp(file))
    except OSError:
        return None
    for tensor in tensors:
        digest.update(f"{tensor.name!r} {tensor.format.gguf_id} {tensor.shape} {tensor.data.size};".encode())
        for sample in samples(tensor.data):
            digest.update(sample)
    return digest.hexdigest()


def _stamp(file: Path) -> bytes:
    """Without the path: the same file under another name is the same."""
    status = os.stat(file)
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns};".encode()


def samples(data: npt.NDArray[np.uint8]) -> Iterator[bytes]:
    """Beginning, middle and end of (n,) bytes; all of them where that is little more."""
    if data.size <= 4 * SAMPLE_BYTES:
        yield data.tobytes()
        return
    for begin in (0, data.size // 2, data.size - SAMPLE_BYTES):
        yield data[begin : begin + SAMPLE_BYTES].tobytes()

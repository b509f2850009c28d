# SPDX-License-Identifier: Apache-2.0
"""A model file mapped read-only into memory. Its size is the real one, read once at opening: every
reader compares what a header claims with it before touching a byte, so that none runs past the end."""

from __future__ import annotations

import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.core.errors import ModelFileError


@dataclass(frozen=True, slots=True, eq=False)
class FileMap:
    path: Path
    content: mmap.mmap  # slices are bytes
    array: npt.NDArray[np.uint8]  # (size,) read-only view of the same bytes
    size: int


def map_file(path: Path) -> FileMap:
    """Map a regular, non-empty file; anything else is a ModelFileError."""
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise ModelFileError(path, "file", f"cannot be opened: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise ModelFileError(path, "file", "is a directory; name the model file in it")
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError(path, "file", "is not a regular file")
        if status.st_size == 0:
            raise ModelFileError(path, "file", "is empty (0 bytes); fetch it again")
        try:
            content = mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelFileError(path, "file", f"cannot be mapped into memory: {error}") from None
    finally:
        os.close(descriptor)
    return FileMap(path, content, np.frombuffer(content, np.uint8), status.st_size)

# SPDX-License-Identifier: Apache-2.0
"""Bytes onto the disk so that a file is either whole and checked or not there at all."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from headrace.core.errors import CatalogueError

CHUNK_BYTES = 1 << 20
HOME_ADVICE = "Set HEADRACE_HOME to a folder you may write to"
SPACE_ADVICE = (
    "Make room (`headrace models` lists what is stored, `headrace rm NAME` deletes), or set HEADRACE_HOME"
)


class Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


def append_chunks(path: Path, chunks: Iterable[bytes], digest: Digest, max_bytes: int | None) -> None:
    """Append to `path` and bring it to the disk. More than `max_bytes` in the file is refused, so that
    a source that lies about a size cannot fill the disk."""
    with path.open("ab") as file:
        size = file.tell()
        for chunk in chunks:
            size += len(chunk)
            if max_bytes is not None and size > max_bytes:
                raise CatalogueError(
                    f"{path.name}: the source sends more than the expected {max_bytes} bytes"
                )
            file.write(chunk)
            digest.update(chunk)
        file.flush()
        os.fsync(file.fileno())


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(what: str, found: str, wanted: str | None) -> None:
    if wanted is not None and found != wanted.lower():
        raise CatalogueError(
            f"{what}: the sha256 does not match: expected {wanted.lower()}, got {found}. "
            "The file was damaged on its way or is not the one meant; nothing was kept"
        )


def write_text_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable, where the platform lets a folder be opened."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.0f} MB" if size_bytes >= 1e6 else f"{size_bytes:,} bytes"


@contextmanager
def disk_errors_named(folder: Path) -> Iterator[None]:
    """Turn the disk's refusals (full, read-only, no permission) into sentences with the folder's name."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CatalogueError(f"the disk is full: {folder}. {SPACE_ADVICE}") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise CatalogueError(
                f"cannot write {error.filename or folder}: {error.strerror}. {HOME_ADVICE}"
            ) from error
        raise

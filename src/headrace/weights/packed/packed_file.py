# SPDX-License-Identifier: Apache-2.0
"""The packed matrices of one model in one file: magic, lengths and a checksum, a directory in JSON, then each
matrix's bytes at a multiple of ALIGNMENT. What reads it checks all but the matrices' bytes, of which it looks
at samples; so a file that was cut, is empty or not ours is a `PackedFileError`, never a crash later."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.core.errors import ModelFileError
from headrace.weights.file_map import map_file
from headrace.weights.packed.identity import samples

MAGIC = b"HRPACKED"
VERSION = 1
ALIGNMENT = 4096
WRITE_BYTES = 4 << 20  # written at once; between two writes a writer can be stopped
# magic, version, bytes of the directory, bytes of the file, checksum of the directory
HEADER = struct.Struct("<8sIIQ20s")
FIELDS = ("name", "gguf_id", "kind", "rows", "columns", "multiplier")


class PackedFileError(Exception):
    """A file that is not what a writer left when it was done."""


class WriteStopped(Exception):
    """Whoever wanted a file written does not want it any more."""


class PackedTensor(NamedTuple):
    """One matrix as `_native.PackedMatrix` holds it."""

    name: str
    gguf_id: int  # of the tensor it was packed from
    kind: int
    rows: int
    columns: int
    multiplier: float
    data: npt.NDArray[np.uint8]  # (bytes,) read-only


class _Place(NamedTuple):
    """Where a matrix lies in the file."""

    tensor: PackedTensor
    offset: int


def packed_size(tensors: Sequence[PackedTensor]) -> int:
    """Bytes that `write_packed` will write, within a few pages."""
    return sum(_aligned(tensor.data.size) for tensor in tensors) + _aligned(300 * len(tensors))


def write_packed(
    path: Path, identity: str, tensors: Sequence[PackedTensor], is_stopped: Callable[[], bool]
) -> None:
    """Make a new file and bring it to the disk. Its name must not be taken; whoever calls renames or removes
    it. Raises OSError, and WriteStopped as soon as `is_stopped` says so."""
    # The directory's own length moves the offsets that it tells, which are therefore from its end.
    places, end = [], 0
    for tensor in tensors:
        places.append(_Place(tensor, end))
        end += _aligned(tensor.data.size)
    directory = _directory(identity, places)
    begin = _aligned(HEADER.size + len(directory))
    header = HEADER.pack(MAGIC, VERSION, len(directory), begin + end, _checksum(directory))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    with open(descriptor, "wb", buffering=0) as file:
        _write(file.write, header + directory + bytes(begin - HEADER.size - len(directory)), is_stopped)
        for tensor in tensors:
            _write(file.write, tensor.data, is_stopped)
            _write(file.write, bytes(_aligned(tensor.data.size) - tensor.data.size), is_stopped)
        os.fsync(file.fileno())


def _directory(identity: str, places: Sequence[_Place]) -> bytes:
    digest = hashlib.blake2b(digest_size=20)
    entries = []
    for tensor, offset in places:
        for sample in samples(tensor.data):
            digest.update(sample)
        entries.append([*tensor[: len(FIELDS)], offset, tensor.data.size])
    return json.dumps({"identity": identity, "samples": digest.hexdigest(), "tensors": entries}).encode()


def _write(
    write: Callable[[memoryview], int | None],
    data: bytes | npt.NDArray[np.uint8],
    is_stopped: Callable[[], bool],
) -> None:
    view = memoryview(data)  # type: ignore[arg-type]  # an array of bytes has a buffer
    while view:
        if is_stopped():
            raise WriteStopped
        view = view[write(view[:WRITE_BYTES]) or 0 :]


def read_packed(path: Path, identity: str) -> dict[str, PackedTensor]:
    """The matrices by name, as views into the mapped file, which stays mapped while one of them lives.

    Raises FileNotFoundError, and PackedFileError for a file that is not whole or not of this identity."""
    if not path.exists():
        raise FileNotFoundError(path)
    try:
        file = map_file(path)
    except ModelFileError as error:
        raise PackedFileError(str(error)) from None
    if file.size < HEADER.size:
        raise PackedFileError(f"{path} ends within its header")
    magic, version, length, size, checksum = HEADER.unpack_from(file.content)
    if magic != MAGIC or version != VERSION:
        raise PackedFileError(f"{path} does not begin as packed weights of version {VERSION} do")
    if size != file.size or HEADER.size + length > size:
        raise PackedFileError(f"{path} has {file.size} bytes in place of {size}")
    directory = file.content[HEADER.size : HEADER.size + length]
    if _checksum(directory) != checksum:
        raise PackedFileError(f"{path}: the directory is damaged")
    _ask_for(file.content)
    try:
        return _tensors(directory, identity, file.array[_aligned(HEADER.size + length) :])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PackedFileError(f"{path} is not what this version writes: {error!r}") from None
    except PackedFileError as error:
        raise PackedFileError(f"{path} {error}") from None


def _tensors(directory: bytes, identity: str, packed: npt.NDArray[np.uint8]) -> dict[str, PackedTensor]:
    """What `_directory` wrote. `packed` (bytes,): all behind it."""
    said = json.loads(directory)
    if said["identity"] != identity:
        raise PackedFileError("is of another model")
    digest = hashlib.blake2b(digest_size=20)
    tensors = {}
    for *fields, offset, num_bytes in said["tensors"]:
        tensor = PackedTensor._make([*fields, packed[offset : offset + num_bytes]])
        for sample in samples(tensor.data):
            digest.update(sample)
        tensors[tensor.name] = tensor
    if digest.hexdigest() != said["samples"]:
        raise PackedFileError("has damaged weights")
    return tensors


def _ask_for(content: mmap.mmap) -> None:
    """So that the system reads ahead what is not in memory yet."""
    if hasattr(mmap, "MADV_WILLNEED"):
        content.madvise(mmap.MADV_WILLNEED)


def _checksum(directory: bytes) -> bytes:
    return hashlib.blake2b(directory, digest_size=20).digest()


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT

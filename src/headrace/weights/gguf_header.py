# SPDX-License-Identifier: Apache-2.0
"""Reads the header of one GGUF file (v2 and v3, little-endian): metadata and where tensors lie.
Nothing the file claims is believed: each count, length and offset is held against the bytes that are
there before anything is made of it. Errors name the field. It knows nothing of shards or models."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import ModelFileError
from headrace.weights.checkpoint import tensor_field
from headrace.weights.file_map import FileMap
from headrace.weights.formats import BY_GGUF_ID, FORMATS, QuantFormat
from headrace.weights.gguf_cursor import U32, U64, Cursor
from headrace.weights.gguf_metadata import read_metadata
from headrace.weights.gguf_types import other_type_name

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_DIMS = 4

MIN_PAIR_BYTES = 8 + 1 + 4 + 1  # key length, key, value type, value
MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # name length, name, dims count, one dim, type, offset


@dataclass(frozen=True, slots=True)
class TensorPlace:
    name: str
    shape: tuple[int, ...]  # row-major
    format: QuantFormat
    start: int  # byte in the file
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    version: int
    metadata: Mapping[str, object]
    tensors: tuple[TensorPlace, ...]


def read_header(file: FileMap) -> GgufHeader:
    cursor = Cursor(file)
    version = _read_version(cursor)
    num_tensors = cursor.count(U64, "tensor_count")
    num_pairs = cursor.count(U64, "metadata_kv_count")
    left = file.size - cursor.position
    for field, count, min_bytes in (
        ("metadata_kv_count", num_pairs, MIN_PAIR_BYTES),
        ("tensor_count", num_tensors, MIN_TENSOR_BYTES),
    ):
        if count > left // min_bytes:
            raise cursor.fail(field, f"claims {count} entries, the file's {left} bytes hold fewer")
    metadata = read_metadata(cursor, num_pairs)
    alignment = _alignment(file.path, metadata)
    return GgufHeader(version, metadata, _read_tensors(cursor, num_tensors, alignment))


def _read_version(cursor: Cursor) -> int:
    start = cursor.skip(4, "magic")
    magic = cursor.file.content[start : start + 4]
    if magic != MAGIC:
        raise cursor.fail("magic", f"is {magic!r}, not {MAGIC!r}: this is not a GGUF file")
    version = cursor.count(U32, "version")
    if version in VERSIONS:
        return version
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if swapped in (1, *VERSIONS):
        raise cursor.fail("version", f"{swapped}, big-endian: only little-endian files are read")
    raise cursor.fail("version", f"{version} is not supported (2 and 3 are)")


def _alignment(path: Path, metadata: Mapping[str, object]) -> int:
    key = "general.alignment"
    value = metadata.get(key, DEFAULT_ALIGNMENT)
    if type(value) is not int:
        raise ModelFileError(path, key, "is not an integer")
    if value < 8 or value > MAX_ALIGNMENT or value & (value - 1):
        message = f"is {value}; it must be a power of two from 8 to {MAX_ALIGNMENT}"
        raise ModelFileError(path, key, message)
    return value


def _read_tensors(cursor: Cursor, num_tensors: int, alignment: int) -> tuple[TensorPlace, ...]:
    places: dict[str, TensorPlace] = {}  # starts count from the data section, whose place is not known yet
    for index in range(num_tensors):
        place = _read_tensor(cursor, index, alignment)
        if place.name in places:
            raise cursor.fail(tensor_field(place.name), "this tensor stands in the file twice")
        places[place.name] = place
    data_start = -(-cursor.position // alignment) * alignment
    _check_places(cursor.file, list(places.values()), data_start)
    return tuple(
        TensorPlace(place.name, place.shape, place.format, data_start + place.start, place.num_bytes)
        for place in places.values()
    )


def _read_tensor(cursor: Cursor, index: int, alignment: int) -> TensorPlace:
    name = cursor.name(f"name of tensor {index}")
    field = tensor_field(name)
    num_dims = cursor.count(U32, field)
    if not 1 <= num_dims <= MAX_DIMS:
        raise cursor.fail(field, f"has {num_dims} dimensions (1 to {MAX_DIMS} allowed)")
    dims = [cursor.count(U64, field) for _ in range(num_dims)]
    if 0 in dims:
        raise cursor.fail(field, f"has a dimension of 0: {dims}")
    tensor_format = _format(cursor, field)
    if dims[0] % tensor_format.qblock_size:
        message = (
            f"rows of {dims[0]} are not whole {tensor_format.name} qblocks of {tensor_format.qblock_size}"
        )
        raise cursor.fail(field, message)
    num_bytes = tensor_format.num_bytes(math.prod(dims))
    if num_bytes > cursor.file.size:
        message = f"shape {dims} needs {num_bytes} bytes, the whole file has {cursor.file.size}"
        raise cursor.fail(field, message)
    offset = cursor.count(U64, field)
    if offset % alignment:
        raise cursor.fail(field, f"offset {offset} is not a multiple of the alignment {alignment}")
    return TensorPlace(name, tuple(reversed(dims)), tensor_format, offset, num_bytes)


def _format(cursor: Cursor, field: str) -> QuantFormat:
    type_id = cursor.count(U32, field)
    known = BY_GGUF_ID.get(type_id)
    if known is None:
        supported = ", ".join(row.name for row in FORMATS)
        message = f"has type {other_type_name(type_id)}, which is not supported; supported: {supported}"
        raise cursor.fail(field, message)
    return known


def _check_places(file: FileMap, places: list[TensorPlace], data_start: int) -> None:
    """No tensor leaves the file and no two share a byte. Starts count from `data_start`."""
    data_bytes = max(file.size - data_start, 0)
    places.sort(key=lambda place: place.start)
    for place in places:
        if place.num_bytes > data_bytes - place.start:
            message = (
                f"its {place.num_bytes} bytes at offset {place.start} leave the file, which holds "
                f"{data_bytes} bytes of tensors; it is cut short or damaged, fetch it again"
            )
            raise ModelFileError(file.path, tensor_field(place.name), message)
    for before, after in itertools.pairwise(places):
        if before.start + before.num_bytes > after.start:
            message = f"offset {after.start} lies within {tensor_field(before.name)}"
            raise ModelFileError(file.path, tensor_field(after.name), message)

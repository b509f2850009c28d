# SPDX-License-Identifier: Apache-2.0
"""Reads one safetensors file: a JSON header that says where each tensor lies, then the tensors.
Every claim of the header is held against the file's real size before it is acted on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import ModelFileError
from headrace.weights.checkpoint import StoredTensor, tensor_field
from headrace.weights.file_map import FileMap, map_file
from headrace.weights.formats import BY_NAME
from headrace.weights.json_text import MAX_JSON_BYTES, parse_json_object

LENGTH_BYTES = 8  # the header's length, a little-endian uint64
MAX_DIMS = 8
DTYPES = ("F32", "F16", "BF16")  # named alike in the formats table


@dataclass(frozen=True, slots=True)
class Safetensors:
    """A file's tensors by their own names. Which of them a model needs is not known here: one of a dtype that
    is not supported comes as the error to raise if it is needed."""

    tensors: Mapping[str, StoredTensor]  # views into the file's memory map
    unsupported: Mapping[str, ModelFileError]


def open_safetensors(path: Path) -> Safetensors:
    file = map_file(path)
    header, data_start = _read_header(file)
    tensors: dict[str, StoredTensor] = {}
    unsupported: dict[str, ModelFileError] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        found = _read_tensor(file, name, entry, data_start)
        if isinstance(found, ModelFileError):
            unsupported[name] = found
        else:
            tensors[name] = found
    _check_places(file, header, data_start)
    return Safetensors(tensors, unsupported)


def _read_header(file: FileMap) -> tuple[Mapping[str, object], int]:
    if file.size < LENGTH_BYTES:
        raise ModelFileError(file.path, "header length", f"the file has {file.size} bytes, too few for one")
    length = int.from_bytes(file.content[:LENGTH_BYTES], "little")
    left = file.size - LENGTH_BYTES
    if not 2 <= length <= left:
        message = f"claims {length} bytes where {left} follow: not a safetensors file, or cut short"
        raise ModelFileError(file.path, "header length", message)
    if length > MAX_JSON_BYTES:
        raise ModelFileError(
            file.path, "header length", f"{length} bytes is over the limit of {MAX_JSON_BYTES}"
        )
    data_start = LENGTH_BYTES + length
    if file.content[LENGTH_BYTES : LENGTH_BYTES + 1] != b"{":
        raise ModelFileError(file.path, "header", "does not start with '{'")
    return parse_json_object(file.path, "header", file.content[LENGTH_BYTES:data_start]), data_start


def _read_tensor(file: FileMap, name: str, entry: object, data_start: int) -> StoredTensor | ModelFileError:
    """The tensor, or what keeps it from being used; a header that lies about it is raised."""
    field = tensor_field(name)
    if not isinstance(entry, dict):
        raise ModelFileError(file.path, field, "its header entry is not an object")
    dtype = entry.get("dtype")
    if not isinstance(dtype, str):
        raise ModelFileError(file.path, field, f"dtype {dtype!r} is not a string")
    shape = _counts(file, field, "shape", entry.get("shape"))
    if len(shape) > MAX_DIMS:
        raise ModelFileError(file.path, field, f"shape has {len(shape)} dimensions (at most {MAX_DIMS})")
    offsets = _counts(file, field, "data_offsets", entry.get("data_offsets"))
    data_bytes = file.size - data_start
    if len(offsets) != 2 or not offsets[0] <= offsets[1] <= data_bytes:
        message = f"data_offsets {offsets[:4]} do not lie within the file's {data_bytes} bytes of tensors"
        raise ModelFileError(file.path, field, message)
    if dtype not in DTYPES:
        message = f"has dtype {dtype!r}, which is not supported; supported: {', '.join(DTYPES)}"
        return ModelFileError(file.path, field, message)
    stored = BY_NAME[dtype]
    start, end = offsets
    if stored.num_bytes(math.prod(shape)) != end - start:
        message = f"shape {list(shape)} of {dtype} does not fit data_offsets {list(offsets)}"
        raise ModelFileError(file.path, field, message)
    return StoredTensor(name, shape, stored, file.array[data_start + start : data_start + end], file.path)


def _counts(file: FileMap, field: str, key: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(item) is not int or item < 0 for item in value):
        raise ModelFileError(file.path, field, f"{key} is not a list of counts")
    return tuple(value)


def _check_places(file: FileMap, header: Mapping[str, object], data_start: int) -> None:
    """Tensors follow one another without gap or overlap up to the end of the file, as the format asks."""
    places = sorted(
        (entry["data_offsets"], name)
        for name, entry in header.items()
        if name != "__metadata__" and isinstance(entry, dict)
    )
    reached = 0
    for (start, end), name in places:
        if start != reached:
            what = "overlaps the tensor before it" if start < reached else "leaves a gap before it"
            raise ModelFileError(file.path, tensor_field(name), f"data_offsets [{start}, {end}]: it {what}")
        reached = end
    if reached != file.size - data_start:
        message = f"the tensors end at byte {reached} of {file.size - data_start} bytes of data"
        raise ModelFileError(file.path, "data_offsets", message)

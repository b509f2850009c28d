# SPDX-License-Identifier: Apache-2.0
"""A GGUF model, in one file or in shards named `x-00001-of-0000N.gguf`, as a Checkpoint.
Metadata is the first shard's; tensors are views into the mapped files, nothing is copied."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from headrace.core.errors import ModelFileError
from headrace.weights.checkpoint import StoredTensor, tensor_field
from headrace.weights.file_map import FileMap, map_file
from headrace.weights.gguf_header import GgufHeader, read_header

Part = tuple[FileMap, GgufHeader]

SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True, eq=False)
class GgufCheckpoint:
    path: Path
    version: int
    metadata: Mapping[str, object]
    tensors: Mapping[str, StoredTensor]
    files: tuple[Path, ...]  # all shards, the first one first


def open_gguf(path: Path) -> GgufCheckpoint:
    """Open a GGUF file, or all shards of a model by the first one's path.

    Raises ModelFileError for whatever is broken or not supported, naming file and field."""
    file = map_file(path)
    header = read_header(file)
    num_shards = _split_number(file, header, "split.count", default=1)
    parts = [(file, header)]
    if num_shards > 1:
        parts += _open_other_shards(file, header, num_shards)
    tensors = _merge_tensors(parts)
    _check_tensor_count(file, header, len(tensors))
    return GgufCheckpoint(
        path,
        header.version,
        MappingProxyType(dict(header.metadata)),
        MappingProxyType(tensors),
        tuple(file.path for file, _ in parts),
    )


def _split_number(file: FileMap, header: GgufHeader, key: str, default: int) -> int:
    value = header.metadata.get(key, default)
    if type(value) is not int or value < 0:
        raise ModelFileError(file.path, key, f"is {value!r}, not a count")
    return value


def _open_other_shards(
    first: FileMap, header: GgufHeader, num_shards: int
) -> list[tuple[FileMap, GgufHeader]]:
    paths = _shard_paths(first, header, num_shards)
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        message = f"the model is in {num_shards} files; missing beside this one: {', '.join(missing[:5])}"
        raise ModelFileError(first.path, "split.count", message)
    shards = []
    for number, path in enumerate(paths[1:], start=1):
        shard = map_file(path)
        shard_header = read_header(shard)
        for key, expected in (("split.no", number), ("split.count", num_shards)):
            value = _split_number(shard, shard_header, key, default=0)
            if value != expected:
                raise ModelFileError(path, key, f"is {value}, but its name says {expected}")
        shards.append((shard, shard_header))
    return shards


def _shard_paths(first: FileMap, header: GgufHeader, num_shards: int) -> list[Path]:
    named = SHARD_NAME.fullmatch(first.path.name)
    if named is None or int(named["count"]) != num_shards:
        message = f"is {num_shards}, so the file should be named like x-00001-of-{num_shards:05}.gguf"
        raise ModelFileError(first.path, "split.count", message)
    paths = [
        first.path.with_name(f"{named['stem']}-{number:05}-of-{named['count']}.gguf")
        for number in range(1, num_shards + 1)
    ]
    if int(named["number"]) != 1 or _split_number(first, header, "split.no", default=0) != 0:
        raise ModelFileError(first.path, "split.no", f"this is not the first shard; open {paths[0].name}")
    return paths


def _merge_tensors(parts: list[Part]) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for file, header in parts:
        for place in header.tensors:
            if place.name in tensors:
                other = tensors[place.name].file.name
                raise ModelFileError(file.path, tensor_field(place.name), f"stands in {other} too")
            data = file.array[place.start : place.start + place.num_bytes]
            tensors[place.name] = StoredTensor(place.name, place.shape, place.format, data, file.path)
    return tensors


def _check_tensor_count(file: FileMap, header: GgufHeader, num_tensors: int) -> None:
    expected = _split_number(file, header, "split.tensors.count", default=num_tensors)
    if expected != num_tensors:
        message = f"says {expected} tensors, the files hold {num_tensors}"
        raise ModelFileError(file.path, "split.tensors.count", message)

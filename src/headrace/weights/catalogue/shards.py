# SPDX-License-Identifier: Apache-2.0
"""GGUF models cut into several files, `NAME-00001-of-00003.gguf` and so on: all of them or none."""

from __future__ import annotations

import re

from headrace.core.errors import CatalogueError

_SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL | re.IGNORECASE)
_MAX_SHARDS = 1000


def shards_of(file: str) -> tuple[str, ...]:
    """All files of the model that `file` belongs to, in order; just `file` when it is not a shard."""
    match = _SHARD.fullmatch(file)
    if match is None:
        return (file,)
    count = int(match["count"])
    if not 1 <= int(match["number"]) <= count <= _MAX_SHARDS:
        raise CatalogueError(f"{file}: the shard numbers in its name make no sense")
    return tuple(f"{match['stem']}-{k:05}-of-{count:05}.gguf" for k in range(1, count + 1))


def is_later_shard(file: str) -> bool:
    match = _SHARD.fullmatch(file)
    return match is not None and int(match["number"]) > 1

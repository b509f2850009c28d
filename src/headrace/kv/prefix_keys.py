# SPDX-License-Identifier: Apache-2.0
"""What names the contents of a block: a chained hash of everything that its K/V depends on, which is all
tokens up to its end and the namespace they were computed in. The same keys name blocks in every tier."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256


def root_key(*, model: str, adapter: str = "", media: str = "", salt: str = "") -> bytes:
    """The key before the first block. K/V of one namespace are never found from another: `model` is the
    model's fingerprint with all that its numbers depend on, `media` what stands behind placeholder tokens,
    `salt` the secret or name of whoever wants a cache apart. Each part is written with its length, so that
    no two namespaces read alike."""
    parts = [part.encode("utf-8", "surrogatepass") for part in (model, adapter, media, salt)]
    return sha256(b"".join(struct.pack("<Q", len(part)) + part for part in parts)).digest()


@lru_cache(maxsize=64)
def _packer(num_tokens: int) -> struct.Struct:
    return struct.Struct(f"<{num_tokens}i")


def block_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The key of a block with these tokens after the block named `parent`. SHA-256: a collision would show
    one caller another's text, so it must not be one that somebody can look for."""
    return sha256(parent + _packer(len(tokens)).pack(*tokens)).digest()


def extend_keys(
    keys: list[bytes], root: bytes, tokens: Sequence[int], block_size: int, num_tokens: int
) -> None:
    """Append the keys of the blocks that the first `num_tokens` of a sequence's `tokens` fill and that have
    none yet."""
    for begin in range(len(keys) * block_size, num_tokens - block_size + 1, block_size):
        keys.append(block_key(keys[-1] if keys else root, tokens[begin : begin + block_size]))

# SPDX-License-Identifier: Apache-2.0
"""What this room needs of an opened model: where it is and its metadata. Reads tokenizer metadata with
checked types; a wrong one is an error naming the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace.core.errors import ModelFileError


class HasMetadata(Protocol):
    """The part of `weights.checkpoint.Checkpoint` that concerns text."""

    @property
    def path(self) -> Path: ...

    @property
    def metadata(self) -> Mapping[str, object]: ...


@dataclass(frozen=True, slots=True)
class TokenizerFields:
    """Checked access to GGUF metadata. Optional values are None when the file has no such key."""

    path: Path
    metadata: Mapping[str, object]

    def fail(self, key: str, message: str) -> ModelFileError:
        return ModelFileError(self.path, key, message)

    def text(self, key: str) -> str | None:
        value = self.metadata.get(key)
        if value is None or isinstance(value, str):
            return value
        raise self.fail(key, f"must be a string, is {type(value).__name__}")

    def flag(self, key: str, default: bool) -> bool:
        value = self.metadata.get(key, default)
        if isinstance(value, bool):
            return value
        raise self.fail(key, f"must be true or false, is {value!r}")

    def token_id(self, key: str, vocab_size: int) -> int | None:
        value = self.metadata.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(key, f"must be a token id, is {value!r}")
        if not 0 <= value < vocab_size:
            raise self.fail(key, f"is {value}, outside the vocabulary of {vocab_size} tokens")
        return value

    def strings(self, key: str) -> Sequence[str] | None:
        value = self.metadata.get(key)
        if value is None:
            return None
        if isinstance(value, (str, np.ndarray)) or not isinstance(value, Sequence):
            raise self.fail(key, f"must be an array of strings, is {type(value).__name__}")
        if isinstance(value, (list, tuple)) and not all(isinstance(text, str) for text in value):
            raise self.fail(key, "must be an array of strings, holds others")
        return value

    def numbers(self, key: str, count: int) -> npt.NDArray[np.generic] | None:
        """(count,) one number for each token."""
        value = self.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuf":
            raise self.fail(key, f"must be an array of numbers, is {type(value).__name__}")
        if len(value) != count:
            raise self.fail(key, f"has {len(value)} entries for {count} tokens")
        return value


def all_strings(strings: Sequence[str]) -> list[str]:
    """The strings as a list; arrays that stay in their file decode themselves faster in one go."""
    to_list = getattr(strings, "to_list", None)
    return list(strings) if to_list is None else to_list()

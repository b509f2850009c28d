# SPDX-License-Identifier: Apache-2.0
"""Typed reading of untrusted metadata (GGUF keys or a JSON object). Whatever is absent, of the wrong type
or out of bounds becomes a ModelFileError that names the key; nothing is guessed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import ModelFileError

MAX_COUNT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Fields:
    path: Path
    values: Mapping[str, object]
    prefix: str = ""  # of every key, e.g. `llama.`

    def name(self, key: str) -> str:
        return self.prefix + key

    def has(self, key: str) -> bool:
        return self.values.get(self.name(key)) is not None

    def fault(self, key: str, message: str) -> ModelFileError:
        return ModelFileError(self.path, self.name(key), message)

    def count(self, key: str, default: int | None = None, *, high: int = MAX_COUNT) -> int:
        """A positive integer up to `high`."""
        value = self._get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= high:
            raise self.fault(key, f"must be a whole number from 1 to {high}, got {value!r}")
        return value

    def whole(self, key: str, default: int | None = None) -> int:
        """Zero or a positive integer."""
        return 0 if self._get(key, default) == 0 else self.count(key, default)

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self._get(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self.fault(key, f"must be a number, got {value!r}")
        if not (math.isfinite(value) and value > 0):
            raise self.fault(key, f"must be a finite number above 0, got {value!r}")
        return float(value)

    def optional_positive(self, key: str) -> float | None:
        return self.positive(key) if self.has(key) else None

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.fault(key, f"must be a string, got {value!r}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.fault(key, f"must be true or false, got {value!r}")
        return value

    def section(self, key: str) -> Fields:
        """A nested object's own fields; its faults are named `key.inner`."""
        value = self._get(key, None)
        if not isinstance(value, Mapping):
            raise self.fault(key, f"must be an object, got {value!r}")
        inner = self.name(key) + "."
        return Fields(self.path, {f"{inner}{name}": item for name, item in value.items()}, inner)

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(self.name(key))
        if value is not None:
            return value
        if default is None:
            raise self.fault(key, "is missing")
        return default

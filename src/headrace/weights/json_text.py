# SPDX-License-Identifier: Apache-2.0
"""Reads JSON that a model file or folder brings along, as strictly as it must be: an object, in UTF-8,
no key twice. Whatever else it is becomes a ModelFileError."""

from __future__ import annotations

import json
from pathlib import Path

from headrace.core.errors import ModelFileError

# The safetensors library takes headers of 100 MB; parsing one costs seconds and half a gigabyte, and no
# model needs a tenth of it: this is room for a quarter of a million tensors.
MAX_JSON_BYTES = 32_000_000


def read_json_file(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise ModelFileError(path, "file", f"cannot be read: {error.strerror}") from None
    if len(text) > MAX_JSON_BYTES:
        raise ModelFileError(path, "file", f"is larger than {MAX_JSON_BYTES} bytes")
    return parse_json_object(path, "file", text)


def parse_json_object(path: Path, field: str, text: bytes) -> dict[str, object]:
    """`field` is what `text` is to be called in an error."""
    # A quick look first: megabytes of blanks are not worth parsing.
    if text[:64].lstrip()[:1] != b"{":
        raise ModelFileError(path, field, "is not a JSON object")
    try:
        value: dict[str, object] = json.loads(text.decode(), object_pairs_hook=_object_of)
    except UnicodeDecodeError as error:
        raise ModelFileError(
            path, field, f"is not valid UTF-8 ({error.reason} at byte {error.start})"
        ) from None
    except RecursionError:
        raise ModelFileError(path, field, "is JSON nested too deeply") from None
    except MemoryError:
        raise ModelFileError(path, field, "is too large for this machine's memory") from None
    except ValueError as error:
        raise ModelFileError(path, field, f"is not valid JSON: {error}") from None
    return value


def _object_of(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"key {key!r} stands in it twice")
        seen.add(key)
    return found

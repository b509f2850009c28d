# SPDX-License-Identifier: Apache-2.0
"""Reads the small JSON files beside a model."""

from __future__ import annotations

import json
from pathlib import Path

from headrace.core.errors import ModelFileError


def read_json_object(path: Path) -> dict[str, object]:
    """The file's object; empty when there is no such file."""
    try:
        value = json.loads(path.read_bytes()) if path.is_file() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(path, path.name, f"is no valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(path, path.name, f"must hold a JSON object, holds a {type(value).__name__}")
    return value

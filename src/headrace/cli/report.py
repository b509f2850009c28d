# SPDX-License-Identifier: Apache-2.0
"""How measuring commands hand their results on: as JSON in a file or on stdout, as a page in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from headrace.core.errors import HeadraceError


def write_json(target: str, values: Mapping[str, object]) -> None:
    """Write to the file `target`, to stdout if it is `-`."""
    text = json.dumps(values, indent=2)
    if target == "-":
        print(text)
        return
    write_text(target, text + "\n")


def write_text(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise HeadraceError(f"cannot write {path}: {error}") from error

# SPDX-License-Identifier: Apache-2.0
"""How measuring commands hand their results on: as JSON in a file or on stdout."""

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
    try:
        Path(target).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise HeadraceError(f"cannot write {target}: {error}") from error

# SPDX-License-Identifier: Apache-2.0
"""The rule for short names. A name that passes is safe as a folder name on every platform, so that
nothing a user types can point outside the store."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from headrace.core.errors import CatalogueError

_RULE = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,94}[a-z0-9])?")
_RESERVED = {"con", "prn", "aux", "nul", *(f"{d}{k}" for d in ("com", "lpt") for k in range(10))}


def is_short_name(text: str) -> bool:
    return bool(_RULE.fullmatch(text)) and ".." not in text and text.split(".")[0] not in _RESERVED


def check_short_name(text: str) -> str:
    """The name itself, or CatalogueError saying what a name may be."""
    if not is_short_name(text):
        raise CatalogueError(
            f"{text!r} cannot be a model's name: use a-z, 0-9, '.', '_' and '-', "
            "beginning and ending with a letter or digit, at most 96 characters"
        )
    return text


def short_name_of(file_name: str) -> str:
    """A short name made from a file or repository name: `Qwen3-0.6B-Q8_0.gguf` -> `qwen3-0.6b-q8_0`."""
    stem = re.sub(r"\.gguf$", "", file_name, flags=re.IGNORECASE)
    stem = re.sub(r"-00001-of-\d{5}$", "", stem)
    name = re.sub(r"[^a-z0-9._-]+", "-", stem.lower())
    name = re.sub(r"\.{2,}", ".", name)[:96].strip("._-")
    if not is_short_name(name):
        raise CatalogueError(f"no short name can be made from {file_name!r}: choose one with --name")
    return name


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` Did you mean a or b?`, or nothing when no known name is near."""
    near = difflib.get_close_matches(name.lower(), sorted(known), n=2, cutoff=0.6)
    return f" Did you mean {' or '.join(near)}?" if near else ""

# SPDX-License-Identifier: Apache-2.0
"""Whether a path of the user's own looks like a model: by a file's first bytes or a folder's file names. What
else may be wrong with it shows when it is opened."""

from __future__ import annotations

from pathlib import Path

from headrace.core.errors import CatalogueError

MAGIC = b"GGUF"
CONFIG = "config.json"


def check_is_model(path: Path) -> None:
    """CatalogueError for what is neither a GGUF file nor a folder with a config.json."""
    if path.is_dir():
        _check_folder(path)
    else:
        _check_file(path)


def _check_folder(path: Path) -> None:
    if (path / CONFIG).is_file():
        return
    gguf = sorted(file.name for file in path.glob("*.gguf"))
    advice = f"Give one of its GGUF files, e.g. {path / gguf[0]}" if gguf else "Or give a GGUF file"
    raise CatalogueError(f"{path} is no model: a model's folder has a {CONFIG}. {advice}")


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise CatalogueError(f"{path} is no model: it is neither a file nor a folder")
    with path.open("rb") as file:
        begin = file.read(16)
    if begin.startswith(MAGIC):
        return
    if path.suffix == ".safetensors":
        raise CatalogueError(f"{path} is tensors alone: give the folder that has its {CONFIG}")
    raise CatalogueError(f"{path} is no model: a GGUF file begins {MAGIC!r}, this one {begin!r}")

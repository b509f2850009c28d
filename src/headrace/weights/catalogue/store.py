# SPDX-License-Identifier: Apache-2.0
"""The models on this machine: HOME/models/NAME/ holds the files and, written last, a manifest. A
folder without a manifest holds no model, whatever else lies in it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from headrace.core.errors import CatalogueError
from headrace.weights.catalogue.lock import exclusive_lock
from headrace.weights.catalogue.saving import (
    SPACE_ADVICE,
    megabytes,
    size_of,
    sync_folder,
    write_text_atomically,
)
from headrace.weights.catalogue.short_names import check_short_name, is_short_name

MANIFEST = "headrace.json"
PARTIAL = ".partial"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    name: str
    source: str  # wheel:..., hf:..., an URL without secrets, or a path
    source_key: str  # sha256 of the source as asked for; finds a model by its source
    path: str  # what to open: inside the model's folder ("." is the folder), or absolute for a linked file
    files: tuple[str, ...]  # the model's own files; empty for a link
    size_bytes: int
    sha256: str | None  # of the file, where the model is a single one
    pulled_at: str  # ISO 8601, UTC
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Store:
    home: Path

    def folder(self, name: str) -> Path:
        return self.home / "models" / check_short_name(name)

    def partial(self, name: str) -> Path:
        """Where a pull gathers files before they count. On the same disk, so that renaming suffices."""
        return self.folder(name) / PARTIAL

    def lock(self, name: str, on_wait: Callable[[], None]) -> AbstractContextManager[None]:
        return exclusive_lock(self.home / "locks" / f"{check_short_name(name)}.lock", on_wait)

    def read(self, name: str) -> Manifest | None:
        """The manifest of a stored model, None when there is none."""
        path = self.folder(name) / MANIFEST
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            if fields["version"] != VERSION:
                raise CatalogueError(
                    f"{path}: written by another Headrace; `headrace rm {name}` and pull again"
                )
            return Manifest(**{**fields, "files": tuple(fields["files"])})
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise CatalogueError(
                f"{path}: unreadable ({error}); `headrace rm {name}` and pull again"
            ) from error

    def all(self) -> Iterator[Manifest]:
        folder = self.home / "models"
        names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
        for name in names:
            if is_short_name(name) and (manifest := self.read(name)) is not None:
                yield manifest

    def half_pulled(self) -> Iterator[tuple[str, int]]:
        """Names and bytes of what interrupted pulls left behind, to be resumed or removed."""
        for partial in sorted(self.home.glob(f"models/*/{PARTIAL}")):
            name = partial.parent.name
            if is_short_name(name) and not (partial.parent / MANIFEST).exists():
                yield name, sum(size_of(file) for file in partial.rglob("*") if file.is_file())

    def path(self, manifest: Manifest) -> Path:
        """What to open, after a look that its files are still whole."""
        folder = self.folder(manifest.name)
        path = folder / manifest.path
        again = f"`headrace rm {manifest.name}` and pull again"
        if not path.exists():
            raise CatalogueError(f"{manifest.name}: {path} is gone; {again}")
        found = sum(size_of(folder / file) for file in manifest.files)
        if manifest.files and found != manifest.size_bytes:
            raise CatalogueError(
                f"{manifest.name}: {folder} holds {found} bytes in place of {manifest.size_bytes}; {again}"
            )
        return path

    def settle(self, manifest: Manifest) -> None:
        """Move the gathered files into place, then let them count by writing the manifest."""
        folder, partial = self.folder(manifest.name), self.partial(manifest.name)
        folder.mkdir(parents=True, exist_ok=True)
        for file in manifest.files:
            target = folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(partial / file, target)
        sync_folder(folder)
        write_text_atomically(folder / MANIFEST, json.dumps(asdict(manifest), indent=2) + "\n")
        self.forget_partial(manifest.name)

    def forget_partial(self, name: str) -> None:
        shutil.rmtree(self.partial(name), ignore_errors=True)

    def prune(self, name: str) -> None:
        """Delete a model's folder if nothing is in it."""
        for folder in (self.partial(name), self.folder(name)):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def remove(self, name: str) -> None:
        """Delete a model's folder, half-pulled leftovers included. The manifest goes first, so that an
        interrupted removal leaves nothing that looks complete."""
        (self.folder(name) / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(self.folder(name))

    def check_room(self, needed_bytes: int) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.home).free
        if free < needed_bytes:
            raise CatalogueError(
                f"{self.home} has {megabytes(free)} free and {megabytes(needed_bytes)} are needed. "
                + SPACE_ADVICE
            )


def check_relative(file: str) -> str:
    """A file name from a source, refused if it could leave the folder it is put into."""
    parts = PurePosixPath(file).parts
    if (
        not parts
        or file.startswith("/")
        or "\\" in file
        or ":" in file
        or any(p in ("..", PARTIAL, MANIFEST) for p in parts)
    ):
        raise CatalogueError(f"the source names a file {file!r}, which could lie outside the store: refused")
    return file

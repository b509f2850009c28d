# SPDX-License-Identifier: Apache-2.0
"""Models by URL: one GGUF file, or all shards of one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit, urlunsplit

from headrace.core.errors import CatalogueError
from headrace.weights.catalogue.http_download import Wanted, download
from headrace.weights.catalogue.remote import Fetched
from headrace.weights.catalogue.saving import check_sha256, hash_file
from headrace.weights.catalogue.shards import shards_of
from headrace.weights.catalogue.short_names import short_name_of


@dataclass(frozen=True, slots=True)
class UrlRemote:
    url: str

    @property
    def text(self) -> str:
        """Without user, password, query and fragment, any of which may be secret."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        return urlunsplit((parts.scheme, f"{host}:{parts.port}" if parts.port else host, parts.path, "", ""))

    @property
    def file(self) -> str:
        name = PurePosixPath(unquote(urlsplit(self.url).path)).name
        if not name.lower().endswith(".gguf"):
            raise CatalogueError(
                f"{self.text}: an URL must name a .gguf file. For a hub repository write hf:org/name"
            )
        return name

    @property
    def default_name(self) -> str:
        return short_name_of(self.file)

    @property
    def needed_bytes(self) -> None:
        return None

    def fetch(self, folder: Path, sha256: str | None, show: bool) -> Fetched:
        files = shards_of(self.file)
        if sha256 is not None and len(files) > 1:
            raise CatalogueError("--sha256 is of one file; this model has several")
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            download(Wanted(self._url_of(file), folder / file, b"GGUF", {}), show)
        found = hash_file(folder / files[0]) if len(files) == 1 else None
        if sha256 is not None and found != sha256.lower():
            (folder / files[0]).unlink()
            check_sha256(self.text, str(found), sha256)
        size = sum((folder / file).stat().st_size for file in files)
        return Fetched(files, files[0], size, found)

    def _url_of(self, file: str) -> str:
        parts = urlsplit(self.url)
        path = parts.path.rsplit("/", 1)[0] + "/" + file if file != self.file else parts.path
        return urlunsplit(parts._replace(path=path))

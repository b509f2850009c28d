# SPDX-License-Identifier: Apache-2.0
"""Models in a hub repository: `hf:org/name/file.gguf`, or `hf:org/name` where it holds one GGUF model or
a safetensors one. huggingface_hub knows endpoint, tokens and listings (HF_ENDPOINT, HF_TOKEN); the bytes
come by our own download, since its own begins again at zero when a pull is interrupted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.core.errors import CatalogueError
from headrace.weights.catalogue.http_download import Wanted, download
from headrace.weights.catalogue.remote import Fetched
from headrace.weights.catalogue.saving import check_sha256, hash_file, megabytes
from headrace.weights.catalogue.shards import is_later_shard, shards_of
from headrace.weights.catalogue.short_names import short_name_of
from headrace.weights.catalogue.store import check_relative

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_ADDRESS = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)(?:/(?P<file>.+))?")
# What a safetensors model is read from; other weights in such a repository are the same model again.
_FOLDER_FILES = re.compile(
    r"config\.json|generation_config\.json|tokenizer[\w.]*|special_tokens_map\.json|added_tokens\.json"
    r"|vocab\.\w+|merges\.txt|chat_template\.\w+|model[\w.-]*\.safetensors(\.index\.json)?"
)


@dataclass(frozen=True, slots=True)
class HubFile:
    name: str
    size_bytes: int
    sha256: str | None  # known for large files only


@dataclass(frozen=True, slots=True)
class HubRemote:
    """A model found in a repository at one commit."""

    repo: str
    commit: str
    files: tuple[HubFile, ...]
    path: str  # what to open, "." for the folder

    @property
    def text(self) -> str:
        return f"hf:{self.repo}" if self.path == "." else f"hf:{self.repo}/{self.path}"

    @property
    def default_name(self) -> str:
        return short_name_of(self.repo.split("/")[1] if self.path == "." else Path(self.path).name)

    @property
    def needed_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def fetch(self, folder: Path, sha256: str | None, show: bool) -> Fetched:
        if sha256 is not None and len(self.files) > 1:
            raise CatalogueError("--sha256 is of one file; this model has several")
        found: str | None = None
        for file in self.files:
            found = self._fetch_file(file, folder, sha256, show)
        names = tuple(file.name for file in self.files)
        size = sum((folder / name).stat().st_size for name in names)
        return Fetched(names, self.path, size, found if len(names) == 1 else None)

    def _fetch_file(self, file: HubFile, folder: Path, demanded: str | None, show: bool) -> str:
        from huggingface_hub import get_token, hf_hub_url

        target = folder / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        url = hf_hub_url(self.repo, file.name, revision=self.commit)
        magic = b"GGUF" if file.name.lower().endswith(".gguf") else b""
        token = get_token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        download(Wanted(url, target, magic, headers), show)
        found, size = hash_file(target), target.stat().st_size
        if size != file.size_bytes or any(s not in (None, found) for s in (file.sha256, demanded)):
            target.unlink()
        if size != file.size_bytes:
            raise CatalogueError(f"{self.repo}/{file.name}: {size} bytes came in place of {file.size_bytes}")
        for wanted in (file.sha256, demanded):
            check_sha256(f"{self.repo}/{file.name}", found, wanted)
        return found


def find_in_hub(address: str) -> HubRemote:
    """Ask the hub what the repository holds and choose the model's files, or say what to choose from."""
    repo, file = parse_address(address)
    from huggingface_hub import HfApi

    with hub_errors_named(address):
        commit, held = _list_files(HfApi(), repo)
    if file is not None:
        chosen = _named(address, file, held)
        return HubRemote(repo, commit, chosen, chosen[0].name)
    ggufs = [f for f in held.values() if f.name.lower().endswith(".gguf") and not is_later_shard(f.name)]
    if len(ggufs) == 1:
        chosen = _named(address, ggufs[0].name, held)
        return HubRemote(repo, commit, chosen, chosen[0].name)
    if ggufs:
        lines = "".join(f"\n  hf:{repo}/{f.name}  {megabytes(f.size_bytes)}" for f in ggufs)
        raise CatalogueError(f"{address} holds several GGUF files. Name one of:{lines}")
    return HubRemote(repo, commit, _safetensors_folder(address, held), ".")


def parse_address(address: str) -> tuple[str, str | None]:
    match = _ADDRESS.fullmatch(address)
    if match is None or ".." in address:
        raise CatalogueError(f"{address!r} is not a hub address: write hf:org/name or hf:org/name/file.gguf")
    return match["repo"], match["file"]


def _list_files(api: HfApi, repo: str) -> tuple[str, dict[str, HubFile]]:
    commit = api.model_info(repo).sha
    if commit is None:
        raise CatalogueError(f"hf:{repo}: the hub names no commit")
    held = {}
    for item in api.list_repo_tree(repo, recursive=True, revision=commit):
        if (size := getattr(item, "size", None)) is not None:  # a file; a folder has no size
            lfs = getattr(item, "lfs", None)
            name = check_relative(item.path)
            held[name] = HubFile(name, size, lfs.sha256 if lfs else None)
    return commit, held


def _named(address: str, file: str, held: dict[str, HubFile]) -> tuple[HubFile, ...]:
    if not file.lower().endswith(".gguf"):
        raise CatalogueError(
            f"{address}: name a .gguf file, or no file for the repository's safetensors model"
        )
    missing = [name for name in shards_of(file) if name not in held]
    if missing:
        there = ", ".join(sorted(name for name in held if name.lower().endswith(".gguf"))) or "none"
        raise CatalogueError(f"{address}: the repository has no {missing[0]}. Its GGUF files: {there}")
    return tuple(held[name] for name in shards_of(file))


def _safetensors_folder(address: str, held: dict[str, HubFile]) -> tuple[HubFile, ...]:
    chosen = tuple(file for name, file in sorted(held.items()) if _FOLDER_FILES.fullmatch(name))
    if "config.json" not in held or not any(file.name.endswith(".safetensors") for file in chosen):
        raise CatalogueError(f"{address} holds neither a GGUF file nor config.json with model*.safetensors")
    return chosen


@contextmanager
def hub_errors_named(address: str) -> Iterator[None]:
    """The hub client's errors as one sentence with the address."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise CatalogueError(
            f"{address}: access must be granted first: accept the terms on the repository's page, "
            "then set HF_TOKEN or run `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise CatalogueError(
            f"{address}: no such repository, or a private one (set HF_TOKEN or run `hf auth login`)"
        ) from error
    except (errors.HFValidationError, errors.HfHubHTTPError, errors.LocalEntryNotFoundError) as error:
        raise CatalogueError(f"{address}: {str(error).strip().splitlines()[0]}") from error

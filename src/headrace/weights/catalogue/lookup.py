# SPDX-License-Identifier: Apache-2.0
"""What is on this machine, by name: a short name, hf:org/name[/file], an http(s) URL, or a path, which
is used in place. Fetches nothing."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.core.env import home_directory
from headrace.core.errors import CatalogueError
from headrace.weights.catalogue.progress import say
from headrace.weights.catalogue.saving import disk_errors_named, megabytes
from headrace.weights.catalogue.short_names import did_you_mean, is_short_name
from headrace.weights.catalogue.store import Manifest, Store
from headrace.weights.catalogue.table import BY_NAME, ENTRIES

MODEL_ENDINGS = (".gguf", ".safetensors")


State = Literal["here", "half pulled", "not pulled"]


@dataclass(frozen=True, slots=True)
class Listed:
    """A line of `headrace models`."""

    name: str
    size_bytes: int
    source: str
    state: State
    path: Path | None  # None: not on this machine as a whole


def resolve(name: str) -> Path:
    """The file or folder of a model that is on this machine; CatalogueError says how to get it if not."""
    store = Store(home_directory())
    if is_address(name):
        manifest = find_by_source(store, name)
        if manifest is None:
            raise CatalogueError(f"{name} is not on this machine yet. Run: headrace pull {name}")
        return store.path(manifest)
    if looks_like_path(name):
        return existing(name)
    manifest = store.read(name) if is_short_name(name) else None
    if manifest is not None:
        return store.path(manifest)
    if name in BY_NAME:
        size = megabytes(BY_NAME[name].size_bytes)
        raise CatalogueError(f"{name} is not on this machine yet ({size}). Run: headrace pull {name}")
    if name and Path(name).exists():
        return Path(name).absolute()
    raise CatalogueError(unknown(name, store))


def list_models() -> tuple[Listed, ...]:
    """Models on this machine, what interrupted pulls left, then what else the catalogue knows."""
    store = Store(home_directory())
    here = [
        Listed(m.name, m.size_bytes, m.source, "here", store.folder(m.name) / m.path) for m in store.all()
    ]
    half = [Listed(name, size, "interrupted", "half pulled", None) for name, size in store.half_pulled()]
    listed = {model.name for model in (*here, *half)}
    absent = [
        Listed(e.name, e.size_bytes, "catalogue", "not pulled", None) for e in ENTRIES if e.name not in listed
    ]
    return (*here, *half, *absent)


def remove(name: str) -> None:
    """Forget a model and delete its files. A linked file itself stays where it is."""
    store = Store(home_directory())
    if is_address(name) and (manifest := find_by_source(store, name)):
        name = manifest.name
    if not is_short_name(name) or not store.folder(name).is_dir():
        names = [manifest.name for manifest in store.all()]
        raise CatalogueError(
            f"no model {name!r} is stored.{did_you_mean(name, names)} `headrace models` lists them"
        )
    with disk_errors_named(store.home), store.lock(name, lambda: say(f"{name}: waiting for its pull", True)):
        store.remove(name)


def is_address(name: str) -> bool:
    return name.startswith(("hf:", "http://", "https://"))


def looks_like_path(name: str) -> bool:
    """Whether a name can only mean a path. A bare word is a short name first."""
    if is_address(name):
        return False
    return name.startswith((".", "~")) or "/" in name or "\\" in name or name.lower().endswith(MODEL_ENDINGS)


def existing(name: str) -> Path:
    path = Path(name).expanduser().absolute()
    if not path.exists():
        hint = ""
        if "://" in name:
            hint = " Of addresses, http://, https:// and hf:org/name can be pulled"
        elif name.count("/") == 1 and name[0] not in "./~":
            hint = f" For a hub repository write hf:{name}"
        raise CatalogueError(f"{name}: no such file or folder.{hint}")
    return path


def unknown(name: str, store: Store) -> str:
    names = {*BY_NAME, *(manifest.name for manifest in store.all())}
    return (
        f"no model is named {name!r}.{did_you_mean(name, names)} Known: {', '.join(sorted(names))}. "
        "Or give a path to a .gguf file, hf:org/name, or an URL"
    )


def find_by_source(store: Store, source: str) -> Manifest | None:
    """The stored model that was pulled from this source, however it is named."""
    key, stored = source_key(source), tuple(store.all())
    exact = [m for m in stored if m.source_key == key or m.source == source]
    inside = [m for m in stored if m.source.startswith(source + "/")]  # hf:org/name for its one file
    return exact[0] if exact else inside[0] if len(inside) == 1 else None


def source_key(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()

# SPDX-License-Identifier: Apache-2.0
"""Names, paths, links, listing and removal: everything of the catalogue that fetches nothing."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from headrace.core.errors import CatalogueError
from headrace.weights.catalogue import list_models, pull, remove, resolve
from headrace.weights.catalogue.lock import exclusive_lock
from headrace.weights.catalogue.shards import is_later_shard, shards_of
from headrace.weights.catalogue.short_names import is_short_name, short_name_of
from headrace.weights.catalogue.store import Store, check_relative


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "Some-Model.Q8_0.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    return path


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("smollm2", "headrace pull smollm2"),
        ("smolm2", "Did you mean smollm2?"),
        ("SmolLM2", "Did you mean smollm2?"),
        ("qqqq", "Known: gemma3-270m, smollm2"),
        ("hf:org/name", "headrace pull hf:org/name"),
        ("https://example.org/x.gguf", "headrace pull https://example.org/x.gguf"),
        ("org/name", "write hf:org/name"),
        ("./none.gguf", "no such file or folder"),
        ("none.gguf", "no such file or folder"),
        ("ftp://example.org/x.gguf", "http://, https:// and hf:org/name can be pulled"),
        ("", "no model is named ''"),
    ],
)
def test_a_name_that_is_not_here_says_what_would_work(home: Path, name: str, says: str) -> None:
    with pytest.raises(CatalogueError) as error:
        resolve(name)
    assert says in str(error.value)
    assert not home.exists()  # looking makes nothing


def test_no_name_is_not_this_folder(home: Path) -> None:
    with pytest.raises(CatalogueError, match="no model is named ''"):
        pull("")


@pytest.mark.parametrize(
    "name", ["..", "../x", "a/b", ".hidden", "a..b", "", "A", "x" * 97, "con", "nul.gguf", "a\n"]
)
def test_names_that_are_no_short_names(home: Path, name: str) -> None:
    assert not is_short_name(name)
    with pytest.raises(CatalogueError):
        Store(home).folder(name)
    with pytest.raises(CatalogueError):
        remove(name)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("Qwen3-0.6B-Q8_0.gguf", "qwen3-0.6b-q8_0"),
        ("big-00001-of-00003.gguf", "big"),
        ("odd name (1).GGUF", "odd-name-1"),
        ("a..b.gguf", "a.b"),
    ],
)
def test_short_names_made_from_files(file: str, name: str) -> None:
    assert short_name_of(file) == name


@pytest.mark.parametrize(
    "file", ["../x", "/etc/x", "a/../../x", "a\\b", "c:x", "", "headrace.json", ".partial/x"]
)
def test_file_names_of_a_source_that_could_leave_the_store(file: str) -> None:
    with pytest.raises(CatalogueError):
        check_relative(file)


def test_shards() -> None:
    assert shards_of("m.gguf") == ("m.gguf",)
    assert shards_of("d/m-00002-of-00002.gguf") == ("d/m-00001-of-00002.gguf", "d/m-00002-of-00002.gguf")
    assert is_later_shard("m-00002-of-00002.gguf")
    assert not is_later_shard("m-00001-of-00002.gguf")
    for absurd in ("m-00000-of-00002.gguf", "m-00003-of-00002.gguf", "m-00001-of-99999.gguf"):
        with pytest.raises(CatalogueError):
            shards_of(absurd)


def test_a_path_is_used_in_place(home: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(str(model)) == model
    assert pull(str(model)) == model
    assert resolve(str(model.parent)) == model.parent
    monkeypatch.chdir(model.parent)
    assert resolve(model.name) == model
    assert resolve(f"./{model.name}") == model
    assert [m.name for m in list_models() if m.path] == []


def test_a_linked_file_has_a_name_and_outlives_it(home: Path, model: Path) -> None:
    assert pull(str(model), name="mine") == model
    assert pull(str(model), name="mine") == model  # again: nothing to do
    assert resolve("mine") == model
    assert [(m.name, m.size_bytes) for m in list_models() if m.path] == [("mine", 104)]
    remove("mine")
    assert model.exists()
    with pytest.raises(CatalogueError, match="no model is named 'mine'"):
        resolve("mine")


def test_a_name_is_not_taken_twice(home: Path, model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF")
    pull(str(model), name="mine")
    with pytest.raises(CatalogueError, match="mine is already here"):
        pull(str(other), name="mine")
    with pytest.raises(CatalogueError, match="a name of the catalogue"):
        pull(str(other), name="smollm2")


def test_a_link_whose_file_is_gone(home: Path, model: Path) -> None:
    pull(str(model), name="mine")
    model.unlink()
    with pytest.raises(CatalogueError, match="is gone"):
        resolve("mine")
    remove("mine")
    assert not (home / "models/mine").exists()


def test_sha256_of_a_path(home: Path, model: Path) -> None:
    with pytest.raises(CatalogueError, match="sha256 does not match"):
        pull(str(model), sha256="0" * 64)
    with pytest.raises(CatalogueError, match="is a folder"):
        pull(str(model.parent), sha256="0" * 64)


@pytest.mark.parametrize("name", [None, "mine"])
def test_what_is_no_model_is_not_pulled(home: Path, tmp_path: Path, name: str | None) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("Dear diary")
    with pytest.raises(CatalogueError, match=r"notes\.txt is no model: a GGUF file begins"):
        pull(str(notes), name=name)
    with pytest.raises(CatalogueError, match=r"has a config\.json\. Or give a GGUF file"):
        pull(str(tmp_path), name=name)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(
        CatalogueError, match=r"has a config\.json\. Give one of its GGUF files, e\.g\. .*m\.gguf"
    ):
        pull(str(tmp_path), name=name)
    tensors = tmp_path / "model.safetensors"
    tensors.write_bytes(bytes(8))
    with pytest.raises(CatalogueError, match="tensors alone"):
        pull(str(tensors), name=name)
    assert list_models()[0].path is None
    (tmp_path / "config.json").write_text("{}")
    assert pull(str(tmp_path), name=name) == tmp_path


def test_the_catalogue_is_listed_with_sizes(home: Path) -> None:
    assert [(m.name, m.size_bytes, m.path) for m in list_models()] == [
        ("smollm2", 98_362_432, None),
        ("gemma3-270m", 253_113_024, None),
    ]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"version": 9}', '{"version": 1, "files": [], "odd": 1}']
)
def test_a_broken_manifest_is_named(home: Path, text: str) -> None:
    folder = home / "models/m"
    folder.mkdir(parents=True)
    (folder / "headrace.json").write_text(text)
    with pytest.raises(CatalogueError, match=r"headrace\.json.*headrace rm m"):
        resolve("m")
    remove("m")
    assert not folder.exists()


def test_a_file_that_shrank_is_not_used(home: Path, model: Path) -> None:
    pull(str(model), name="m")
    manifest = home / "models/m/headrace.json"
    (home / "models/m/m.gguf").write_bytes(b"GGUF")
    fields = json.loads(manifest.read_text()) | {"path": "m.gguf", "files": ["m.gguf"], "size_bytes": 5}
    manifest.write_text(json.dumps(fields))
    with pytest.raises(CatalogueError, match="4 bytes in place of 5"):
        resolve("m")


def test_only_one_holds_a_lock(tmp_path: Path) -> None:
    path, order, waited = tmp_path / "locks/x.lock", [], threading.Event()

    def second() -> None:
        with exclusive_lock(path, waited.set):
            order.append("second")

    with exclusive_lock(path, lambda: pytest.fail("waited for nobody")):
        thread = threading.Thread(target=second)
        thread.start()
        assert waited.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]

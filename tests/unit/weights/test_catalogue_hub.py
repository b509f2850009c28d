# SPDX-License-Identifier: Apache-2.0
"""Models in a hub repository: the real client against a small hub on loopback. The client reads
HF_ENDPOINT when it is imported, so that pulls run in a process of their own."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from file_server import FileServer

from headrace.core.errors import CatalogueError
from headrace.weights.catalogue.hub import parse_address

COMMIT = "0123456789abcdef0123456789abcdef01234567"
DATA = b"GGUF" + random.Random(3).randbytes(3_000_000)


class Hub:
    """Puts a repository's listing and files onto the file server as the hub does."""

    def __init__(self, server: FileServer, home: Path, tmp_path: Path) -> None:
        self.server = server
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("HF_")
        } | {
            "HF_ENDPOINT": server.url,
            "HF_HOME": str(tmp_path / "hf"),
        }

    def add_repo(self, repo: str, files: dict[str, bytes], lie: str | None = None) -> None:
        """`lie`: the sha256 to claim for every large file in place of its own."""
        tree = []
        for name, data in files.items():
            sha256 = hashlib.sha256(data).hexdigest()
            entry: dict[str, object] = {"type": "file", "path": name, "size": len(data), "oid": sha256[:40]}
            if name.endswith((".gguf", ".safetensors")):
                entry["lfs"] = {"oid": lie or sha256, "size": len(data), "pointerSize": 130}
            tree.append(entry)
            self.server.files[f"/{repo}/resolve/{COMMIT}/{name}"] = data
        info = {"id": repo, "sha": COMMIT, "private": False, "tags": [], "downloads": 0, "siblings": []}
        self._add_json(f"/api/models/{repo}", info)
        self._add_json(f"/api/models/{repo}/tree/{COMMIT}", tree)

    def _add_json(self, path: str, value: object) -> None:
        self.server.files[path] = json.dumps(value).encode()
        self.server.headers_of[path] = {"Content-Type": "application/json"}

    def pull(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "headrace", "pull", *words]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)


@pytest.fixture
def hub(server: FileServer, home: Path, tmp_path: Path) -> Hub:
    return Hub(server, home, tmp_path)


def test_a_named_file_and_a_second_pull_without_the_hub(hub: Hub, home: Path) -> None:
    hub.add_repo("org/Tiny-GGUF", {"README.md": b"x", "Q8/Tiny.Q8_0.gguf": DATA, "Tiny.Q4_0.gguf": DATA})
    done = hub.pull("hf:org/Tiny-GGUF/Q8/Tiny.Q8_0.gguf")
    assert done.returncode == 0, done.stderr
    path = home / "models/tiny.q8_0/Q8/Tiny.Q8_0.gguf"
    assert done.stdout == f"{path}\n"
    assert path.read_bytes() == DATA
    assert sorted(p.name for p in (home / "models/tiny.q8_0").iterdir()) == ["Q8", "headrace.json"]
    asked = len(hub.server.asked)
    assert hub.pull("-q", "hf:org/Tiny-GGUF/Q8/Tiny.Q8_0.gguf").stdout == f"{path}\n"
    assert len(hub.server.asked) == asked


def test_several_files_are_listed_to_choose_from(hub: Hub) -> None:
    hub.add_repo("org/t", {"a.gguf": DATA, "b-00001-of-00002.gguf": DATA, "b-00002-of-00002.gguf": DATA})
    done = hub.pull("hf:org/t")
    assert done.returncode == 1
    assert "hf:org/t/a.gguf  3 MB" in done.stderr
    assert "hf:org/t/b-00001-of-00002.gguf" in done.stderr
    assert "00002-of-00002" not in done.stderr
    assert "has no c.gguf. Its GGUF files: a.gguf" in hub.pull("hf:org/t/c.gguf").stderr


def test_the_only_model_in_shards(hub: Hub, home: Path) -> None:
    shards = {f"big-0000{k}-of-00002.gguf": b"GGUF" + bytes(k) for k in (1, 2)}
    hub.add_repo("org/big", shards)
    done = hub.pull("-q", "hf:org/big", "--name", "big")
    assert done.stdout == f"{home}/models/big/big-00001-of-00002.gguf\n", done.stderr
    assert (home / "models/big/big-00002-of-00002.gguf").exists()


def test_a_safetensors_repository_becomes_a_folder(hub: Hub, home: Path) -> None:
    wanted = {"config.json": b"{}", "model.safetensors": bytes(100), "tokenizer.json": b"{}"}
    hub.add_repo(
        "org/Tiny", wanted | {"pytorch_model.bin": b"x", "consolidated.safetensors": b"x", "a.md": b""}
    )
    done = hub.pull("-q", "hf:org/Tiny")
    assert done.stdout == f"{home}/models/tiny\n", done.stderr
    assert {p.name for p in (home / "models/tiny").iterdir()} == {*wanted, "headrace.json"}
    fetched = {path for method, path, _ in hub.server.asked if method == "GET"}
    assert not any("pytorch" in path or "consolidated" in path for path in fetched)


def test_a_broken_download_goes_on(hub: Hub, home: Path) -> None:
    hub.add_repo("org/t", {"t.gguf": DATA})
    hub.server.break_after = [2_500_000]
    assert hub.pull("-q", "hf:org/t").returncode == 0
    assert (home / "models/t/t.gguf").read_bytes() == DATA
    assert hub.server.ranges()[-1] == f"bytes={2 << 20}-"


def test_the_token_goes_to_the_hub(hub: Hub) -> None:
    hub.add_repo("org/t", {"t.gguf": DATA})
    hub.environment["HF_TOKEN"] = "hf_sesame"
    assert hub.pull("-q", "hf:org/t").returncode == 0
    tokens = [
        token
        for (_, path, _), token in zip(hub.server.asked, hub.server.tokens, strict=True)
        if "org/t" in path
    ]
    assert tokens == ["Bearer hf_sesame"] * 3  # commit, listing, file


def test_a_file_that_is_not_what_the_hub_lists(hub: Hub, home: Path) -> None:
    hub.add_repo("org/t", {"t.gguf": DATA}, lie="0" * 64)
    done = hub.pull("-q", "hf:org/t")
    assert done.returncode == 1
    assert "sha256 does not match" in done.stderr
    assert not (home / "models/t/headrace.json").exists()


def test_the_hubs_refusals_are_one_sentence(hub: Hub) -> None:
    missing = "/api/models/org/none"
    hub.server.status_of[missing] = 401
    hub.server.headers_of[missing] = {"X-Error-Code": "RepoNotFound"}
    done = hub.pull("hf:org/none")
    assert done.returncode == 1
    assert done.stderr == (
        "headrace: hf:org/none: no such repository, or a private one (set HF_TOKEN or run `hf auth login`)\n"
    )
    hub.server.status_of[missing] = 403
    hub.server.headers_of[missing] = {"X-Error-Code": "GatedRepo"}
    assert "accept the terms" in hub.pull("hf:org/none").stderr
    hub.add_repo("org/empty", {"README.md": b"x"})
    assert "holds neither a GGUF file nor config.json" in hub.pull("hf:org/empty").stderr


@pytest.mark.parametrize(
    "address", ["hf:", "hf:org", "hf:/org/name", "hf:org/name/../x.gguf", "hf:org/na me", "hf:org/x/"]
)
def test_what_is_no_hub_address(address: str) -> None:
    with pytest.raises(CatalogueError, match="is not a hub address"):
        parse_address(address)

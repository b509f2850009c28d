# SPDX-License-Identifier: Apache-2.0
"""Models by URL: whole or not at all, resumed where the server allows it, secrets kept out of the store."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from file_server import FileServer

from headrace.core.errors import CatalogueError
from headrace.weights.catalogue import http_download as http
from headrace.weights.catalogue import list_models, pull, remove, resolve

DATA = b"GGUF" + random.Random(1).randbytes(5_000_000)
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "FIRST_PAUSE_S", 0.0)


@pytest.fixture
def url(home: Path, server: FileServer) -> str:
    server.files["/m/Tiny.Q8_0.gguf"] = DATA
    return f"{server.url}/m/Tiny.Q8_0.gguf"


def files_of(home: Path) -> list[str]:
    models = home / "models"
    return sorted(p.relative_to(models).as_posix() for p in models.rglob("*") if p.is_file())


def test_pull_resolve_list_remove(url: str, home: Path, server: FileServer) -> None:
    path = pull(url, progress=False, sha256=SHA256)
    assert path.read_bytes() == DATA
    assert files_of(home) == ["tiny.q8_0/Tiny.Q8_0.gguf", "tiny.q8_0/headrace.json"]
    assert resolve(url) == resolve("tiny.q8_0") == path
    assert pull(url, progress=False) == path
    assert len(server.asked) == 1  # the second pull asks nobody
    with pytest.raises(CatalogueError, match="is here with sha256"):
        pull(url, progress=False, sha256="0" * 64)
    assert [m.name for m in list_models() if m.path] == ["tiny.q8_0"]
    remove(url)
    assert files_of(home) == []


def test_a_broken_connection_is_taken_up_again(url: str, server: FileServer) -> None:
    server.break_after = [2_500_000, 1_200_000, *[0] * (http.MAX_TRIES - 1)]
    assert pull(url, progress=False, sha256=SHA256).read_bytes() == DATA
    first, second, third = server.ranges()[:3]
    assert first is None
    assert second == f"bytes={2 << 20}-"
    assert third == f"bytes={3 << 20}-"


@pytest.mark.parametrize("lacking", ["with_etag", "with_range"])
def test_a_server_that_cannot_resume_is_asked_for_all(url: str, server: FileServer, lacking: str) -> None:
    setattr(server, lacking, False)
    server.break_after = [2_500_000]
    assert pull(url, progress=False).read_bytes() == DATA


def test_a_file_that_changed_in_between_is_fetched_anew(url: str, server: FileServer, home: Path) -> None:
    server.break_after = [2_500_000] + [0] * http.MAX_TRIES
    with pytest.raises(CatalogueError, match="pull again to go on"):
        pull(url, progress=False)
    with pytest.raises(CatalogueError, match="not on this machine"):
        resolve(url)
    other = b"GGUF" + random.Random(2).randbytes(5_000_000)
    server.files["/m/Tiny.Q8_0.gguf"] = other
    server.break_after = []
    assert pull(url, progress=False).read_bytes() == other


def test_a_part_longer_than_the_file_now_is(url: str, server: FileServer) -> None:
    server.break_after = [4_500_000] + [0] * http.MAX_TRIES
    with pytest.raises(CatalogueError):
        pull(url, progress=False)
    server.break_after = []
    server.files["/m/Tiny.Q8_0.gguf"] = b"GGUF" + bytes(1000)
    assert pull(url, progress=False).stat().st_size == 1004


def test_a_wrong_checksum_keeps_nothing(url: str, home: Path) -> None:
    with pytest.raises(CatalogueError, match="sha256 does not match"):
        pull(url, progress=False, sha256="0" * 64)
    assert files_of(home) == []
    assert pull(url, progress=False, sha256=SHA256).read_bytes() == DATA


def test_what_is_not_a_model_is_refused(server: FileServer, home: Path) -> None:
    server.files["/login.gguf"] = b"<!doctype html><title>Sign in</title>"
    server.files["/empty.gguf"] = b""
    for name, says in (
        ("login.gguf", "no GGUF file"),
        ("empty.gguf", "0 bytes"),
        ("none.gguf", "404"),
        ("model.bin", "must name a .gguf file"),
    ):
        with pytest.raises(CatalogueError, match=says):
            pull(f"{server.url}/{name}", progress=False)
    assert not any("headrace.json" in file for file in files_of(home))


def test_shards_come_together(server: FileServer, home: Path) -> None:
    for k in (1, 2, 3):
        server.files[f"/big-0000{k}-of-00003.gguf"] = b"GGUF" + bytes(k)
    path = pull(f"{server.url}/big-00001-of-00003.gguf?token=t", name="big", progress=False)
    assert path.name == "big-00001-of-00003.gguf"
    assert files_of(home) == [*(f"big/big-0000{k}-of-00003.gguf" for k in (1, 2, 3)), "big/headrace.json"]
    assert all(asked.endswith("?token=t") for _, asked, _ in server.asked)


def test_secrets_of_an_url_are_not_stored(server: FileServer, home: Path) -> None:
    server.files["/m.gguf"] = DATA
    url = server.url.replace("://", "://user:pass@") + "/m.gguf?signature=s3cret"
    path = pull(url, progress=False)
    assert resolve(url) == path
    stored = (home / "models/m/headrace.json").read_text()
    assert "s3cret" not in stored
    assert "user:pass" not in stored
    assert f'"source": "{server.url}/m.gguf"' in stored


def test_another_model_of_the_same_name(url: str, server: FileServer) -> None:
    pull(url, progress=False)
    server.files["/other/tiny.q8_0.gguf"] = DATA
    with pytest.raises(CatalogueError, match="choose another name with --name"):
        pull(f"{server.url}/other/tiny.q8_0.gguf", progress=False)
    assert pull(f"{server.url}/other/tiny.q8_0.gguf", name="tiny2", progress=False).parent.name == "tiny2"


def test_two_pulls_at_once_fetch_once(url: str, server: FileServer) -> None:
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(pull(url, progress=False))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(paths) == 4
    assert len(set(paths)) == 1
    assert len(server.asked) == 1


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_in_the_middle_then_pulled_again(
    url: str, server: FileServer, home: Path, sign: signal.Signals
) -> None:
    server.stall_after = 3_500_000
    with subprocess.Popen(
        [sys.executable, "-m", "headrace", "pull", "-q", url], stderr=subprocess.PIPE, env=dict(os.environ)
    ) as process:
        part = home / "models/tiny.q8_0/.partial/Tiny.Q8_0.gguf.part"
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not (part.exists() and part.stat().st_size >= 3 << 20):
            time.sleep(0.02)
        process.send_signal(sign)
        assert process.wait(10) == (-sign if sign == signal.SIGKILL else 130)
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    with pytest.raises(CatalogueError, match="not on this machine"):
        resolve(url)
    assert [(m.name, m.size_bytes // 1_000_000) for m in list_models() if m.state == "half pulled"] == [
        ("tiny.q8_0", 3)
    ]
    server.stall_after = None
    assert pull(url, progress=False, sha256=SHA256).read_bytes() == DATA
    assert server.ranges()[-1] == f"bytes={3 << 20}-"
    assert files_of(home) == ["tiny.q8_0/Tiny.Q8_0.gguf", "tiny.q8_0/headrace.json"]

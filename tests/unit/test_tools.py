# SPDX-License-Identifier: Apache-2.0
"""Each house check passes good code and finds the fault it is for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
TOP = "# SPDX-License-Identifier: Apache-2.0\n"
GOOD = TOP + '"""What it is for."""\n'

FAULTS = [
    (
        "env_reads",
        "src/headrace/kv/x.py",
        GOOD + "import os\nhome = os.environ['HOME']\n",
        "x.py:4: reads the env",
    ),
    ("env_reads", "src/headrace/kv/x.py", GOOD + "from os import getenv\n", "x.py:3: reads the env"),
    ("env_reads", "native/core/x.cpp", 'int main() { getenv("X"); }\n', "x.cpp:1: reads the env"),
    (
        "native_reach",
        "src/headrace/engine/x.py",
        GOOD + "from headrace import _native\n",
        "x.py:3: imports the nat",
    ),
    (
        "native_reach",
        "src/headrace/text/x.py",
        GOOD + "import headrace._native\n",
        "x.py:3: imports the native",
    ),
    ("headers", "src/headrace/x.py", '"""Doc."""\n', "x.py: the first line is not"),
    ("headers", "src/headrace/x.py", TOP + "x = 1\n", "x.py: no module docstring"),
    ("headers", "tests/x.py", TOP + '"""' + "a\n" * 7 + '"""\n', "x.py: a module docstring of 7 lines"),
    ("headers", "native/x.h", "#pragma once\n", "x.h: the first line is not"),
    ("file_size", "src/headrace/x.py", GOOD + "x = 1\n" * 400, "x.py: 402 lines"),
    ("words", "src/headrace/x_utils.py", GOOD, "'x_utils': 'utils' says nothing"),
    ("words", "src/headrace/x.py", GOOD + "class CacheManager: ...\n", "x.py:3: 'CacheManager'"),
    ("words", "src/headrace/x.py", GOOD + "async def run_worker(): ...\n", "x.py:3: 'run_worker'"),
    (
        "config_fields",
        "src/headrace/core/config.py",
        GOOD
        + "@dataclass(frozen=True)\nclass C:\n    a: int = 1  # told\n    b: int = 2\n    c: int  # told\n",
        "config.py:6: C.b has no sentence",
    ),
]


def run_check(name: str, root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOLS / f"check_{name}.py"), str(root)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(("name", "file", "text", "says"), FAULTS)
def test_a_fault_is_found(tmp_path: Path, name: str, file: str, text: str, says: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    done = run_check(name, tmp_path)
    assert done.returncode == 1
    assert says in done.stdout
    path.write_text(GOOD)  # also a good C++ line, as far as the checks go
    path.rename(path.with_name("good" + path.suffix))
    assert run_check(name, tmp_path).stdout == ""


def test_every_check_has_a_fault_here() -> None:
    assert {path.stem.removeprefix("check_") for path in TOOLS.glob("check_*.py")} == {
        name for name, *_ in FAULTS
    }


@pytest.mark.parametrize("path", sorted(TOOLS.glob("check_*.py")), ids=lambda path: path.stem)
def test_checks_stay_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 60

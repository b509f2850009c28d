# SPDX-License-Identifier: Apache-2.0
"""Opens hostile files in a process of their own, where a crash or a gigabyte is seen and does no harm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

MAX_SECONDS = 1.0
MAX_PEAK_BYTES = 200_000_000


@dataclass(frozen=True)
class Outcome:
    kind: str
    field: str
    message: str
    seconds: float

    def assert_refused(self, field: str, words: str) -> None:
        assert self.kind == "ModelFileError", self
        assert self.field == field, self
        assert words in self.message, self
        assert "\n" not in self.message
        assert self.seconds < MAX_SECONDS, self


def open_all(folder: Path) -> tuple[dict[str, Outcome], int]:
    """What came of each entry of `folder`, and the peak memory in bytes."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    program = str(Path(__file__).with_name("open_all.py"))
    done = subprocess.run(
        [sys.executable, program, str(folder)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    return {name: Outcome(**fields) for name, fields in result["outcomes"].items()}, result["peak_bytes"]

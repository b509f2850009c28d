# SPDX-License-Identifier: Apache-2.0
"""Run as a program: open every entry of a folder under a memory limit and print, as JSON, what came of
each, in how many seconds of CPU time (others may be busy), and the peak memory. Reads what opens."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np

from headrace.core.errors import ModelFileError
from headrace.weights.checkpoint import Checkpoint
from headrace.weights.open import open_checkpoint
from headrace.weights.string_array import StringArray

MEMORY_LIMIT = 1 << 30


def read_everything(checkpoint: Checkpoint) -> None:
    """A place outside the file would end the process here with SIGBUS."""
    for tensor in checkpoint.tensors.values():
        np.add.reduce(tensor.data, dtype=np.int64)
    for value in checkpoint.metadata.values():
        if isinstance(value, StringArray):
            [value.raw(index) for index in range(0, len(value), 1 + len(value) // 1000)]
            value.raw(-1) if len(value) else None
        elif isinstance(value, np.ndarray):
            value.tolist()


def outcome(path: Path) -> dict[str, object]:
    begin = time.process_time()
    try:
        read_everything(open_checkpoint(path))
        error = {"kind": "opened", "field": "", "message": ""}
    except ModelFileError as failure:
        error = {"kind": "ModelFileError", "field": failure.field, "message": str(failure)}
    except Exception as failure:
        error = {"kind": type(failure).__name__, "field": "", "message": str(failure)}
    return error | {"seconds": time.process_time() - begin}


def peak_bytes() -> int:
    """Of this program alone: getrusage would count what the forked parent held."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    outcomes = {entry.name: outcome(entry) for entry in sorted(Path(sys.argv[1]).iterdir())}
    print(json.dumps({"outcomes": outcomes, "peak_bytes": peak_bytes()}))

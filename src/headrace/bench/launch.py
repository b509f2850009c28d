# SPDX-License-Identifier: Apache-2.0
"""How long a fresh process takes from launch to the first character of its answer."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence

from headrace.bench.spread import Spread, spread_of
from headrace.core.errors import HeadraceError

TIMEOUT_S = 600.0


def time_launch(command: Sequence[str]) -> float:
    """Seconds until the command's first byte on stdout, or its end if it prints none."""
    begin_s = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        elapsed_s = time.perf_counter() - begin_s
        _, errors = process.communicate(timeout=TIMEOUT_S)
    if process.returncode != 0:
        said = errors.decode(errors="replace").strip()
        raise HeadraceError(f"{' '.join(command)} ended with status {process.returncode}: {said}")
    return elapsed_s


def measure_launch(
    command: Sequence[str], repetitions: int, on_launch: Callable[[], object] = lambda: None
) -> Spread:
    """Launch one process after another. The first brings files into the page cache and is not counted."""
    times_s = []
    for _ in range(repetitions + 1):
        times_s.append(time_launch(command))
        on_launch()
    return spread_of(times_s[1:])

# SPDX-License-Identifier: Apache-2.0
"""Which machine a measurement is of. A figure without its machine is not a claim."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from headrace import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    cpu: str
    system: str
    python: str
    headrace: str


def this_host() -> Host:
    return Host(
        cpu=_cpu_name(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        headrace=__version__,
    )


def _cpu_name() -> str:
    """Linux keeps the model's name from Python's `platform`, which often has none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())

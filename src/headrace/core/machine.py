# SPDX-License-Identifier: Apache-2.0
"""What this machine lets this process use: cores and memory, cgroup limits included. Reads files of the
running system once, when asked; decides nothing."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Machine:
    num_cores: int  # physical ones that this process may run on
    available_bytes: int  # of memory, that can be had without swapping
    memory_source: str  # where the figure is from


def this_machine() -> Machine:
    available_bytes, memory_source = _available_memory()
    return Machine(_num_cores(), available_bytes, memory_source)


def last_cache_bytes() -> int:
    """Of the largest cache that a core has behind it; 0 where the system does not say."""
    found = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        size = _read(path) or ""
        if size[-1:] == "K" and size[:-1].isdigit():
            found.append(int(size[:-1]) * 1024)
    return max(found)


def _num_cores() -> int:
    """Physical cores, since two hardware threads of a core share its vector units and its cache."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cpus = os.sched_getaffinity(0)
    siblings = {
        _read(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")) or str(cpu)
        for cpu in cpus
    }
    return max(1, min(len(siblings), _cpu_quota()))


def _cpu_quota() -> int:
    """Cores' worth of time that the cgroup grants, rounded up; the machine's own count if it sets none."""
    quota, _, period = (_read(_CGROUP / "cpu.max") or "max").partition(" ")
    if not quota.isdigit() or not period.isdigit():
        return os.cpu_count() or 1
    return max(1, math.ceil(int(quota) / int(period)))


def _available_memory() -> tuple[int, str]:
    free = _meminfo_available()
    limit, used = _read(_CGROUP / "memory.max"), _read(_CGROUP / "memory.current")
    if limit and limit.isdigit() and used and used.isdigit():
        left = max(int(limit) - int(used), 0)
        if free is None or left < free:
            return left, "memory left in the control group"
    if free is not None:
        return free, "available memory"
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2, "half of all memory"
    return 4 * 2**30, "4 GiB assumed, as this system does not say"


def _meminfo_available() -> int | None:
    for line in (_read(Path("/proc/meminfo")) or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None

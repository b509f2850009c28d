# SPDX-License-Identifier: Apache-2.0
"""Which of the native kernel tables runs on this CPU, and why the others do not. The choice is made here,
once for a model; nothing looks it up while it computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace._native import kernel_table_lacks
from headrace.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class KernelTable:
    name: str
    lacks: str  # what this CPU would need to run it; "" when it runs

    @property
    def runs(self) -> bool:
        return not self.lacks


def kernel_tables() -> tuple[KernelTable, ...]:
    """All there are, fastest first; the last one, the portable reference, runs everywhere."""
    return tuple(KernelTable(name, lacks) for name, lacks in kernel_table_lacks())


@dataclass(frozen=True, slots=True)
class Choice:
    table: str
    reason: str


def choose(wanted: str, tables: Sequence[KernelTable]) -> Choice:
    """`auto` is the fastest that runs here. Raises ConfigError for a name that does not."""
    names = [table.name for table in tables if table.runs]
    if wanted != "auto":
        if wanted not in names:
            raise ConfigError(f"kernels {wanted!r} do not run on this CPU; these do: {', '.join(names)}")
        return Choice(wanted, "as asked")
    skipped = [f"{table.name} needs {table.lacks}" for table in tables if not table.runs]
    return Choice(names[0], "; ".join(["the fastest that this CPU runs", *skipped]))

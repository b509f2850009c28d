# SPDX-License-Identifier: Apache-2.0
"""`headrace kernels`: which native kernels compute on this machine, and why the others are skipped."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.kernels.cpu.tables import KernelTable

EXAMPLES = """\
examples:
  headrace kernels
  headrace kernels --json | jq -r '.[] | select(.chosen).name'
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "kernels",
        help="say which kernels this CPU runs",
        description="Print the native kernel tables, fastest first: the chosen one, and why not the others.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list instead")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from headrace.kernels.cpu.tables import choose, kernel_tables

    tables = kernel_tables()
    chosen = choose("auto", tables).table
    if args.json:
        import json

        print(json.dumps([_row(table, chosen) for table in tables], indent=2))
        return 0
    for table in tables:
        print(f"{table.name:<12} {_why(table, chosen)}")
    return 0


def _row(table: KernelTable, chosen: str) -> dict[str, object]:
    return {
        "name": table.name,
        "chosen": table.name == chosen,
        "runs": table.runs,
        "reason": _why(table, chosen),
    }


def _why(table: KernelTable, chosen: str) -> str:
    if table.name == chosen:
        return "chosen: the fastest that this CPU runs"
    if table.runs:
        return f"skipped: {chosen} is faster"
    return f"skipped: this machine lacks {table.lacks}"

# SPDX-License-Identifier: Apache-2.0
"""`headrace models`: what is on this machine, and what the catalogue knows besides."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

EXAMPLES = """\
examples:
  headrace models
  headrace models --json | jq -r '.[].name'
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "models",
        help="list models: here, and known by name",
        description="List the models on this machine and those that `headrace pull` knows by a short name.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--json", action="store_true", help="a JSON list: name, size_bytes, source, state, path"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from headrace.weights.catalogue import list_models

    models = list_models()
    if args.json:
        rows = [asdict(model) | {"path": str(model.path) if model.path else None} for model in models]
        print(json.dumps(rows, indent=2))
        return 0
    cells = [(m.name, f"{m.size_bytes / 1e6:,.0f} MB", m.source, str(m.path or m.state)) for m in models]
    print_table(("NAME", "SIZE", "SOURCE", "PATH"), cells)
    return 0


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[k]) for row in (head, *rows)) for k in range(len(head))]
    for row in (head, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

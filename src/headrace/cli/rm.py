# SPDX-License-Identifier: Apache-2.0
"""`headrace rm`: delete models from this machine."""

from __future__ import annotations

import argparse
import sys
from typing import Any

EXAMPLES = """\
examples:
  headrace rm smollm2
  headrace rm -y smollm2 gemma3-270m
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "rm",
        help="delete a model from this machine",
        description="Delete pulled models, half-pulled ones too. A linked file itself stays where it is.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", metavar="NAME", nargs="+", help="as `headrace models` lists them")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask (asked on a terminal only)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from headrace.weights.catalogue import remove

    for name in args.names:
        if not args.yes and not _confirmed(name):
            print(f"{name}: kept", file=sys.stderr)
            continue
        remove(name)
        print(f"{name}: deleted", file=sys.stderr)
    return 0


def _confirmed(name: str) -> bool:
    """Ask on a terminal; where nobody can be asked, the command itself is the answer."""
    if not sys.stdin.isatty():
        return True
    try:
        return input(f"Delete {name} from this machine? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False

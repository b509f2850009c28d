# SPDX-License-Identifier: Apache-2.0
"""`headrace pull`: bring a model to this machine. The path goes to stdout, everything else to stderr."""

from __future__ import annotations

import argparse
import signal
from types import FrameType
from typing import Any

DESCRIPTION = """\
Bring a model to this machine and print where it lies. A model that is here already is left as it is.
SOURCE is a short name (`headrace models` lists them), hf:org/name or hf:org/name/file.gguf for a hub
repository (HF_ENDPOINT and HF_TOKEN hold), an http(s) URL of a GGUF file, or a path, which is used in
place. What was broken off goes on where it stopped, if the source allows it.
"""

EXAMPLES = """\
examples:
  headrace pull smollm2
  headrace pull hf:Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf --name qwen3
  headrace pull https://example.org/model.gguf --sha256 4a1f...
  headrace pull ./finetuned.gguf --name mine       link a file under a short name
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "pull",
        help="bring a model to this machine",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", help="short name, hf:org/name[/file], URL or path")
    parser.add_argument("--name", help="keep it under this short name")
    parser.add_argument(
        "--sha256", metavar="HEX", type=_sha256, help="refuse the file if it hashes otherwise"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar, only errors")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from headrace.weights.catalogue import pull

    before = signal.signal(signal.SIGTERM, _interrupt)  # tidy up as for Ctrl-C
    try:
        print(pull(args.source, name=args.name, sha256=args.sha256, progress=not args.quiet))
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _sha256(text: str) -> str:
    if len(text) != 64 or set(text.lower()) - set("0123456789abcdef"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a sha256: 64 hexadecimal digits are")
    return text.lower()


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt

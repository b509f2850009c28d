# SPDX-License-Identifier: Apache-2.0
"""`headrace info`: what is in a model file. Reads headers only, so it is quick on any size of model."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.weights.checkpoint import Checkpoint
    from headrace.weights.summary import ModelSummary
    from headrace.weights.tokenizer_summary import SpecialToken

EXAMPLES = """\
examples:
  headrace info smollm2
  headrace info ./model.gguf --tensors
  headrace info ./model-folder --json | jq .formats
"""
TEMPLATE_LINES = 4
LINE_WIDTH = 100


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "info",
        help="say what is in a model file",
        description="Print a model's architecture, size by tensor type, context, tokenizer and template.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="a GGUF file, a model folder, or a name known to `headrace models`")
    parser.add_argument("--tensors", action="store_true", help="list every tensor too")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import json
    from dataclasses import asdict
    from pathlib import Path

    from headrace.weights.open import open_checkpoint
    from headrace.weights.summary import summarise

    path = Path(args.model)
    if not args.model or not path.exists():
        from headrace.weights.catalogue import resolve

        path = resolve(args.model)
    checkpoint = open_checkpoint(path)
    summary = summarise(checkpoint)
    if args.json:
        listed = {"tensors": list(_tensor_rows(checkpoint))} if args.tensors else {}
        print(json.dumps(asdict(summary) | listed, indent=2))
        return 0
    for line in _summary_lines(summary):
        print(line)
    if args.tensors:
        print("\ntensors (rows x columns)")
        for row in _tensor_rows(checkpoint):
            shape, size = " x ".join(str(count) for count in row["shape"]), _size(row["num_bytes"])
            print(f"  {_printable(row['name']):<40} {row['format']:<7} {shape:>16} {size:>10}")
    return 0


def _summary_lines(summary: ModelSummary) -> Iterator[str]:
    geometry = {key: "?" if value is None else str(value) for key, value in summary.geometry.items()}
    several = f", {summary.num_files} files" if summary.num_files > 1 else ""
    tokenizer = summary.tokenizer
    for label, value in (
        ("file", summary.path),
        ("name", summary.name or "-"),
        ("container", f"{summary.container}, {_size(summary.file_bytes)}{several}"),
        ("architecture", summary.architecture or "not said"),
        ("parameters", f"{_millions(summary.num_parameters)} in {summary.num_tensors} tensors"),
        ("context", f"{geometry['context_length']} tokens"),
        ("layers", f"{geometry['num_layers']}, width {geometry['d_model']}, feed-forward {geometry['d_ff']}"),
        ("heads", f"{geometry['num_heads']} query, {geometry['num_kv_heads']} key/value"),
        ("tokenizer", _tokenizer_line(summary)),
        ("bos, eos", f"{_token(tokenizer.bos)}, {_token(tokenizer.eos)}"),
    ):
        yield f"{label:<14}{_printable(value)}"
    yield from _format_lines(summary)
    yield from _template_lines(summary.chat_template)


def _tokenizer_line(summary: ModelSummary) -> str:
    tokenizer = summary.tokenizer
    if tokenizer.model is None:
        return "none"
    kind = tokenizer.model if tokenizer.pre is None else f"{tokenizer.model} / {tokenizer.pre}"
    return f"{kind}, {'?' if tokenizer.vocab_size is None else tokenizer.vocab_size} tokens"


def _token(token: SpecialToken | None) -> str:
    if token is None:
        return "none"
    return " ".join(str(part) for part in (token.id, token.text) if part is not None)


def _format_lines(summary: ModelSummary) -> Iterator[str]:
    yield ""
    yield f"{'type':<10}{'tensors':>9}{'parameters':>14}{'size':>12}{'share':>8}"
    total = sum(share.num_bytes for share in summary.formats)
    for share in summary.formats:
        part = f"{100 * share.num_bytes / total:.1f} %" if total else "-"
        count, size = _millions(share.num_elements), _size(share.num_bytes)
        yield f"{share.format:<10}{share.num_tensors:>9}{count:>14}{size:>12}{part:>8}"


def _template_lines(template: str | None) -> Iterator[str]:
    yield ""
    if template is None:
        yield "chat template  none"
        return
    lines = template.splitlines()
    yield f"chat template  {len(template)} characters"
    for line in lines[:TEMPLATE_LINES]:
        shown = _printable(line)
        yield f"  {shown[:LINE_WIDTH]}{'...' if len(shown) > LINE_WIDTH else ''}"
    if len(lines) > TEMPLATE_LINES:
        yield f"  ... {len(lines) - TEMPLATE_LINES} lines more"


def _tensor_rows(checkpoint: Checkpoint) -> Iterator[dict[str, Any]]:
    for tensor in checkpoint.tensors.values():
        yield {
            "name": tensor.name,
            "shape": list(tensor.shape),
            "format": tensor.format.name,
            "num_bytes": tensor.data.nbytes,
        }


def _printable(text: str) -> str:
    """Text from a file, without what would steer the terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _size(num_bytes: int) -> str:
    if num_bytes < 1e6:
        return f"{num_bytes / 1e3:.1f} kB"
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def _millions(count: int) -> str:
    return f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.2f} M"

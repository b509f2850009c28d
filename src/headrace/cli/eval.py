# SPDX-License-Identifier: Apache-2.0
"""`headrace eval`: how good a model's predictions are. So far its perplexity on a text."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.bench.perplexity import Perplexity

EXAMPLES = """\
examples:
  headrace eval ppl smollm2 wikitext.txt --window 512 --windows 20
  headrace eval ppl ./model.gguf book.txt --json result.json
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "eval",
        help="measure quality",
        description="Measure how good a model's predictions are.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", required=True)
    ppl = kinds.add_parser(
        "ppl",
        help="perplexity on a text",
        description="Perplexity on a text, by the convention of llama.cpp's tool: the second half of each "
        "window\nis scored.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    ppl.add_argument("model", help="a GGUF file, a model folder, or a name known to `headrace models`")
    ppl.add_argument("text", help="a UTF-8 text file")
    ppl.add_argument("--window", type=int, default=512, metavar="N", help="tokens a window (default: 512)")
    ppl.add_argument("--windows", type=int, metavar="N", help="how many windows (default: all of the text)")
    ppl.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: one a core)")
    ppl.add_argument("--json", metavar="FILE", help="also write the result there, `-` for stdout")
    ppl.set_defaults(run=run_ppl)


def run_ppl(args: argparse.Namespace) -> int:
    import time

    from tqdm import tqdm

    from headrace.bench.perplexity import check_fits, first_scored, first_windows, perplexity, token_nlls
    from headrace.cli.report import write_json
    from headrace.core.config import ModelConfig
    from headrace.engine.build import load_backend
    from headrace.text.tokenizer import load_tokenizer

    text = _read_text(args.text)
    loaded = load_backend(args.model, ModelConfig(num_threads=args.threads))
    check_fits(loaded.backend, args.window)
    tokenizer = load_tokenizer(loaded.checkpoint)
    bos_id = tokenizer.bos_id if tokenizer.adds_bos else None
    windows = first_windows(tokenizer.encode(text), args.window, args.windows, bos_id)
    nlls: list[float] = []
    begin_s = time.perf_counter()
    with tqdm(windows, unit="window", file=sys.stderr, disable=None) as bar:
        for tokens in bar:
            nlls += token_nlls(loaded.backend, tokens, first_scored(args.window))
            bar.set_postfix_str(f"perplexity {perplexity(nlls).value:.4f}")
    elapsed_s = time.perf_counter() - begin_s
    loaded.backend.close()
    result = perplexity(nlls)
    if args.json != "-":
        _print(result, len(windows), args.window, elapsed_s)
    if args.json is not None:
        values = {
            "model": args.model,
            "text": args.text,
            "window": args.window,
            "num_windows": len(windows),
            "num_scored": result.num_scored,
            "perplexity": result.value,
            "standard_error": result.standard_error,
            "mean_nll": result.mean_nll,
            "elapsed_s": elapsed_s,
        }
        write_json(args.json, values)
    return 0


def _print(result: Perplexity, num_windows: int, window: int, elapsed_s: float) -> None:
    print(f"perplexity  {result.value:.4f} +/- {result.standard_error:.4f}")
    print(f"mean NLL    {result.mean_nll:.5f} nats a token")
    print(f"scored      {result.num_scored} tokens in {num_windows} windows of {window}")
    print(f"time        {elapsed_s:.1f} s, {num_windows * window / elapsed_s:.0f} tokens/s")


def _read_text(path: str) -> str:
    from pathlib import Path

    from headrace.core.errors import HeadraceError

    try:
        return Path(path).read_bytes().decode("utf-8")  # line ends as they are
    except (OSError, UnicodeDecodeError) as error:
        raise HeadraceError(f"cannot read the text {path}: {error}") from error

# SPDX-License-Identifier: Apache-2.0
"""`headrace bench engine`: what the engine costs beside the computation, with many rows at once."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    from headrace.bench.engine_report import EngineReport
    from headrace.bench.engine_steps import RowLoad
    from headrace.core.plan import Backend

EXAMPLES = """\
examples:
  headrace bench engine smollm2
  headrace bench engine ./model.gguf --rows 32 --prompt-tokens 512 --json engine.json
  headrace bench engine --fake-step-ms 10     the engine alone, beside a step that only sleeps

Time outside computation is a step's whole time, from its start to the next one's, less the time inside the
backend's call. The fake backend computes its few numbers in Python, which counts as computation.
"""
FAKE_BLOCK_SIZE = 16
FAKE_VOCAB_SIZE = 512
NO_HURRY_MS = 60_000.0  # prompts are read at full speed, so that all rows soon draw together


def add_parser(kinds: Any) -> None:
    parser = kinds.add_parser(
        "engine",
        help="the engine's own cost, many rows at once",
        description="Run many rows at once through the engine, and time what is not computation.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="a GGUF file, a model folder, or a name known to `models`"
    )
    parser.add_argument("--rows", type=int, default=16, metavar="N", help="at once (default: 16)")
    parser.add_argument("--prompt-tokens", type=int, default=256, metavar="N", help="default: 256")
    parser.add_argument("--output-tokens", type=int, default=64, metavar="N", help="default: 64")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="default: 2")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: one a core)")
    parser.add_argument(
        "--fake-step-ms", type=float, metavar="MS", help="no model: steps that take so long and do nothing"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the result there, `-` for stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from headrace.bench.engine_report import report_lines
    from headrace.bench.engine_steps import RowLoad
    from headrace.cli.report import write_json

    if (args.model is None) == (args.fake_step_ms is None):
        raise ConfigError("give either a MODEL or --fake-step-ms")
    load = RowLoad(
        num_rows=args.rows,
        prompt_tokens=args.prompt_tokens,
        output_tokens=args.output_tokens,
        rounds=args.rounds,
    )
    report = _measure(args, load)
    if args.json != "-":
        print("\n".join(report_lines(report)))
    if args.json is not None:
        write_json(args.json, asdict(report))
    return 0


def _measure(args: argparse.Namespace, load: RowLoad) -> EngineReport:
    from tqdm import tqdm

    from headrace.bench.engine_report import EngineReport
    from headrace.bench.engine_steps import StepLog, measure_rows
    from headrace.bench.host import this_host
    from headrace.core.config import EngineConfig
    from headrace.engine.loop import Engine

    name, backend = _backend(args, load)
    config = EngineConfig(
        max_num_seqs=load.num_rows,
        max_itl_ms=NO_HURRY_MS,
        max_num_batched_tokens=max(load.num_rows, EngineConfig().max_num_batched_tokens),
    )
    log = StepLog()
    engine = Engine(backend, config, on_step=log)
    engine.start()

    def fill() -> tuple[int, int]:
        stats = engine.stats()
        return stats.num_leased_places, stats.num_filled_places

    try:
        with tqdm(total=load.rounds + 1, unit="round", file=sys.stderr, disable=None) as bar:
            cost = measure_rows(engine.submit_all, fill, log, load, engine.info.vocab_size, bar.update)
    finally:
        engine.close()
    return EngineReport(backend=name, host=this_host(), load=load, cost=cost)


def _backend(args: argparse.Namespace, load: RowLoad) -> tuple[str, Backend]:
    if args.model is None:
        from headrace.runner.backends.fake import FakeBackend

        blocks_a_row = -(-load.num_tokens // FAKE_BLOCK_SIZE) + 1
        fake = FakeBackend(
            vocab_size=FAKE_VOCAB_SIZE,
            max_model_len=load.num_tokens,
            block_size=FAKE_BLOCK_SIZE,
            num_blocks=load.num_rows * blocks_a_row,
            step_s=args.fake_step_ms / 1000,
        )
        return f"fake, {args.fake_step_ms:g} ms a step", fake
    from headrace.core.config import ModelConfig
    from headrace.engine.build import load_backend

    config = ModelConfig(num_threads=args.threads, max_model_len=load.num_tokens)
    return args.model, load_backend(args.model, config).backend

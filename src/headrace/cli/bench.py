# SPDX-License-Identifier: Apache-2.0
"""`headrace bench`: how fast a model runs on this machine, how a server does under load. Here is the latency
of one request at a time; other kinds have files of their own."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from headrace.cli import bench_engine, bench_kernels, bench_peers, bench_serve

if TYPE_CHECKING:
    from headrace.bench.latency_report import LatencyReport

EXAMPLES = """\
examples:
  headrace bench latency smollm2
  headrace bench latency ./model.gguf --prompt-tokens 512 --output-tokens 64 --json result.json
  headrace bench latency gemma3-270m --threads 2 --repetitions 10
  headrace bench engine smollm2 --rows 16
  headrace bench kernels --svg roofline.svg
  headrace bench peers smollm2 --llama-bench PATH
  headrace bench serve http://127.0.0.1:8000 --workload shared
"""
NUM_LAUNCHES = 3
BANDWIDTH_BYTES = 512 * 2**20  # more than any cache holds
BANDWIDTH_S = 1.0


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="measure speed",
        description="Measure how fast a model runs on this machine, or how a server does under load.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", required=True)
    latency = kinds.add_parser(
        "latency",
        help="one request at a time",
        description="Time one request at a time: reading the prompt, making tokens, and the launch of a "
        "fresh\nprocess up to its first token; and compare with how fast this machine reads memory.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    latency.add_argument("model", help="a GGUF file, a model folder, or a name known to `headrace models`")
    latency.add_argument("--prompt-tokens", type=int, default=512, metavar="N", help="default: 512")
    latency.add_argument("--output-tokens", type=int, default=64, metavar="N", help="default: 64")
    latency.add_argument("--repetitions", type=int, default=5, metavar="N", help="default: 5")
    latency.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: one a core)")
    latency.add_argument("--json", metavar="FILE", help="also write the result there, `-` for stdout")
    latency.set_defaults(run=run_latency)
    bench_serve.add_parser(kinds)
    bench_engine.add_parser(kinds)
    bench_kernels.add_parser(kinds)
    bench_peers.add_parser(kinds)


def run_latency(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from headrace.bench.latency_report import report_lines
    from headrace.cli.report import write_json

    report = _measure(args)
    if args.json != "-":
        print("\n".join(report_lines(report)))
    if args.json is not None:
        write_json(args.json, asdict(report))
    return 0


def _measure(args: argparse.Namespace) -> LatencyReport:
    """Launches and bandwidth come first, while this process holds no model and runs no threads."""
    from tqdm import tqdm

    from headrace.bench.host import this_host
    from headrace.bench.latency import LatencyPlan, measure_latency
    from headrace.bench.latency_report import LatencyReport
    from headrace.bench.launch import measure_launch
    from headrace.core.config import ModelConfig
    from headrace.core.machine import this_machine
    from headrace.engine.build import load_backend
    from headrace.engine.loop import Engine
    from headrace.kernels.cpu.bandwidth import read_bandwidth
    from headrace.runner.backends.cpu import CpuBackend
    from headrace.text.chat_template import load_chat_template
    from headrace.text.tokenizer import load_tokenizer
    from headrace.weights import catalogue
    from headrace.weights.open import open_checkpoint

    checkpoint = open_checkpoint(catalogue.resolve(args.model))
    chats = load_chat_template(checkpoint, load_tokenizer(checkpoint)) is not None
    plan = LatencyPlan(
        prompt_tokens=args.prompt_tokens, output_tokens=args.output_tokens, repetitions=args.repetitions
    )
    num_threads = this_machine().num_cores if args.threads is None else args.threads
    config = ModelConfig(num_threads=num_threads, max_model_len=plan.num_tokens)
    num_steps = NUM_LAUNCHES + 2 + plan.num_requests
    bar_format = "{desc:<18}{bar} {elapsed}"
    with tqdm(total=num_steps, bar_format=bar_format, file=sys.stderr, disable=None) as bar:
        bar.set_description_str("launching")
        launch = measure_launch(_launch_command(args.model, num_threads, chats), NUM_LAUNCHES, bar.update)
        bar.set_description_str("reading memory")
        bandwidth = read_bandwidth(num_threads, BANDWIDTH_BYTES, BANDWIDTH_S)
        bar.update()
        bar.set_description_str("loading")
        loaded = load_backend(args.model, config)
        backend = loaded.backend
        assert isinstance(backend, CpuBackend)
        engine = Engine(backend, config.engine)
        engine.start()
        try:
            bar.set_description_str("running")
            latency = measure_latency(engine.submit, plan, backend.info.vocab_size, bar.update)
            stats = engine.stats()
        finally:
            engine.close()
    return LatencyReport(
        model=args.model,
        host=this_host(),
        num_threads=num_threads,
        kernels=backend.kernels,
        prompt_tokens=plan.prompt_tokens,
        output_tokens=plan.output_tokens,
        repetitions=plan.repetitions,
        latency=latency,
        overhead_share=1 - stats.native_s / stats.step_s,
        launch_to_first_token_s=launch,
        weight_bytes_per_token=backend.weight_bytes_per_token,
        read_bandwidth_bytes_per_s=bandwidth,
        mbu=backend.weight_bytes_per_token * latency.decode_tokens_per_s.p50 / bandwidth,
    )


def _launch_command(model: str, num_threads: int, chats: bool) -> list[str]:
    """What a user would type, run by the Python that runs this."""
    command = [sys.executable, "-m", "headrace", "run", model, "-p", "Hi", "--max-tokens", "1"]
    return [*command, "--threads", str(num_threads), *(() if chats else ("--raw",))]

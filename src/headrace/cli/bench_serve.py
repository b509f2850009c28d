# SPDX-License-Identifier: Apache-2.0
"""`headrace bench serve`: how a server that speaks OpenAI's HTTP does under load."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    from headrace.bench.serve import ServePlan
    from headrace.bench.serve_report import ServeReport

EXAMPLES = """\
examples:
  headrace bench serve http://127.0.0.1:8000
  headrace bench serve http://127.0.0.1:8000 --workload shared --json shared.json --html shared.html
  headrace bench serve http://127.0.0.1:8000 --request-rate 4 --duration 60 --slo ttft=500 --slo tpot=50
  headrace bench serve http://127.0.0.1:8000 --workload long-prompt
  headrace bench serve http://127.0.0.1:8000 --workload trace --trace AzureLLMInferenceTrace_code.csv \\
      --time-scale 10 --length-scale 0.25 --num-requests 200

workloads:
  idle         520-token prompts, one at a time
  unique       270-token prompts with nothing in common, 16 at once
  shared       prompts of 970 shared and 55 own tokens, 16 at once; the shared part is sent once before
  schema       chat replies bound to a JSON schema, 8 at once
  long-prompt  4 answers stream, a 6,000-token prompt arrives, and short requests behind it
  trace        requests as recorded: Azure's CSV or Mooncake's JSON lines

Answers are greedy and go on past the end token where the server takes `ignore_eos`. TTFT: from sending to
the first text. TPOT: (E2E - TTFT) / (output tokens - 1), one a request. ITL: the gaps between pieces of
text. Goodput: requests a second that met every --slo; SLO attainment: the share of all sent that did.
"""
WORKLOADS = ("idle", "unique", "shared", "schema", "long-prompt", "trace")
MAX_OPEN_FILES = 65536  # an open loop may have thousands of requests under way
INTERRUPTED = 130  # as a shell has it


def add_parser(kinds: Any) -> None:
    parser = kinds.add_parser(
        "serve",
        help="a server under load",
        description="Put a server that speaks OpenAI's HTTP under load, and time every token.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", metavar="URL", help="of the server, such as http://127.0.0.1:8000")
    load = parser.add_argument_group("load")
    load.add_argument("--workload", choices=WORKLOADS, default="unique", help="default: unique")
    load.add_argument("--seed", type=int, default=0, metavar="N", help="of texts and arrivals (default: 0)")
    load.add_argument("--num-requests", "--max-requests", type=_count, metavar="N", help="at most")
    load.add_argument("--duration", type=_positive, metavar="S", help="send nothing more after S seconds")
    load.add_argument("--output-tokens", type=_count, metavar="N", help="an answer")
    pace = load.add_mutually_exclusive_group()
    pace.add_argument("--concurrency", type=_count, metavar="N", help="closed loop: N requests at once")
    pace.add_argument("--request-rate", type=_positive, metavar="R", help="open loop: R a second, Poisson")
    pace.add_argument("--burst", action="store_true", help="open loop: all of them at once")
    load.add_argument("--cold", action="store_true", help="shared: do not send the shared part before")
    trace = parser.add_argument_group("traces")
    trace.add_argument("--trace", metavar="FILE", help="what --workload trace replays")
    trace.add_argument("--time-scale", type=_positive, default=1.0, metavar="X", help="2: half as fast")
    trace.add_argument("--length-scale", type=_positive, default=1.0, metavar="X", help="0.5: half as long")
    trace.add_argument(
        "--max-model-len",
        type=_count,
        metavar="N",
        help="cut longer requests (default: what the server says)",
    )
    server = parser.add_argument_group("server")
    server.add_argument("--model", metavar="NAME", help="as it calls it (default: the first that it lists)")
    server.add_argument("--api-key", metavar="KEY")
    server.add_argument(
        "--tokenizer", metavar="MODEL", help="count prompts' tokens by this model's, not through the server"
    )
    server.add_argument("--slo-ttft-ms", type=_positive, metavar="MS", help="ask for it by x-slo-ttft-ms")
    server.add_argument(
        "--timeout", type=_positive, default=600.0, metavar="S", help="a request (default: 600)"
    )
    report = parser.add_argument_group("report")
    report.add_argument(
        "--slo", action="append", default=[], metavar="WHAT=MS", help="a target: of ttft, tpot, itl or e2e"
    )
    report.add_argument("--json", metavar="FILE", help="also write the result there, `-` for stdout")
    report.add_argument("--html", metavar="FILE", help="also write a page with plots there")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from headrace.bench.serve_lines import report_lines
    from headrace.bench.serve_report import as_json
    from headrace.cli.report import write_json, write_text

    plan = _plan(args)
    report = _measure(plan, None if args.tokenizer is None else _token_count(args.tokenizer))
    if args.json != "-":
        print("\n".join(report_lines(report)))
    if args.json is not None:
        write_json(args.json, as_json(report))
    if args.html is not None:
        from headrace.bench.html_page import html_page

        write_text(args.html, html_page(report))
    if report.interrupted:
        return INTERRUPTED
    return 0 if report.num_ok or report.refusals else 1


def _measure(plan: ServePlan, count: Callable[[str], Awaitable[int]] | None) -> ServeReport:
    import asyncio

    from tqdm import tqdm

    from headrace.bench.serve import measure

    _allow_many_connections()
    with tqdm(unit="request", file=sys.stderr, disable=None) as bar:

        def on_phase(phase: str, total: int | None) -> None:
            bar.set_description_str(phase)
            bar.reset(total)

        coroutine = measure(plan, count, on_phase, lambda sent: bar.update())
        if sys.platform == "win32":
            return asyncio.run(coroutine)
        import uvloop

        report: ServeReport = uvloop.run(coroutine)
        return report


def _plan(args: argparse.Namespace) -> ServePlan:
    from headrace.bench.serve import ServePlan
    from headrace.bench.targets import parse_target
    from headrace.bench.trace import read_trace
    from headrace.bench.trace_replay import Scale

    if (args.workload == "trace") != (args.trace is not None):
        raise ConfigError("--workload trace and --trace FILE go together")
    if args.workload == "long-prompt" and (args.request_rate or args.concurrency or args.burst):
        raise ConfigError(
            "--workload long-prompt has its own pace: leave out --request-rate, --concurrency and --burst"
        )
    if args.duration is not None and args.request_rate is None and args.num_requests is None:
        raise ConfigError("--duration in a closed loop needs --num-requests: how many may be sent at most")
    arguments = {k: v for k, v in vars(args).items() if k not in ("run", "api_key")}
    return ServePlan(
        url=args.url,
        workload=args.workload,
        model=args.model,
        api_key=args.api_key,
        seed=args.seed,
        num_requests=args.num_requests,
        output_tokens=args.output_tokens,
        concurrency=args.concurrency,
        request_rate=args.request_rate,
        is_burst=args.burst,
        duration_s=args.duration,
        is_cold=args.cold,
        targets=tuple(parse_target(text) for text in args.slo),
        slo_ttft_ms=args.slo_ttft_ms,
        timeout_s=args.timeout,
        trace=() if args.trace is None else tuple(read_trace(args.trace)),
        scale=Scale(time=args.time_scale, length=args.length_scale, max_model_len=args.max_model_len),
        arguments=arguments,
    )


def _token_count(model: str) -> Callable[[str], Awaitable[int]]:
    from headrace.text.tokenizer import load_tokenizer
    from headrace.weights import catalogue
    from headrace.weights.open import open_checkpoint

    tokenizer = load_tokenizer(open_checkpoint(catalogue.resolve(model)))

    async def count(text: str) -> int:
        return len(tokenizer.encode(text))

    return count


def _allow_many_connections() -> None:
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return value

# SPDX-License-Identifier: Apache-2.0
"""`headrace bench kernels`: single kernels at the shapes of real models, against what the machine allows."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    from headrace.bench.kernel_cases import ModelShape
    from headrace.bench.kernel_report import KernelReport

EXAMPLES = """\
examples:
  headrace bench kernels                              every kernel: some minutes
  headrace bench kernels --models 135m --quick        a look in seconds
  headrace bench kernels --formats Q4_1,Q8_0 --json kernels.json --svg roofline.svg
  headrace bench kernels --kernels avx2 --threads 1   another table than the fastest

Percentages are of this machine's own read bandwidth and of the most int8 multiply-adds it can do with the
table's instructions, both measured in the same run. A small share of both is room for a better kernel.
"""
CACHES = 3  # times over: what calls read by turns
FEWEST_CACHE_BYTES = 32 * 2**20  # where the system does not say how large the caches are
SECONDS, QUICK_SECONDS = 0.15, 0.01
FEWEST_CALLS = 3
BANDWIDTH_BYTES, QUICK_BYTES = 512 * 2**20, 16 * 2**20
BANDWIDTH_S, PEAK_S, QUICK_PEAK_S = 1.0, 0.5, 0.1


def add_parser(kinds: Any) -> None:
    parser = kinds.add_parser(
        "kernels",
        help="each kernel against the machine's limits",
        description="Time every native kernel at the shapes of real models, against memory and int8 peak.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--models", default="135m,1b,8b", metavar="NAMES", help="whose shapes (default: 135m,1b,8b)"
    )
    parser.add_argument(
        "--formats", metavar="NAMES", help="of weights, as in files (default: one of each packed kind)"
    )
    parser.add_argument("--kernels", default="auto", metavar="NAME", help="a table (default: the fastest)")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: one a core)")
    parser.add_argument("--quick", action="store_true", help="few sizes, briefly: to see that it works")
    parser.add_argument("--json", metavar="FILE", help="also write the result there, `-` for stdout")
    parser.add_argument("--svg", metavar="FILE", help="also draw the roofline there")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from headrace.bench.kernel_report import as_json, report_lines
    from headrace.bench.roofline import roofline
    from headrace.cli.report import write_json, write_text

    report = _measure(args, _models(args.models))
    if args.json != "-":
        print("\n".join(report_lines(report)))
    if args.json is not None:
        write_json(args.json, as_json(report))
    if args.svg is not None:
        write_text(args.svg, roofline(report))
    return 0


def _models(names: str) -> list[ModelShape]:
    from headrace.bench.kernel_cases import MODELS

    if unknown := [name for name in names.split(",") if name not in MODELS]:
        raise ConfigError(f"--models knows {', '.join(MODELS)}, not {unknown[0]!r}")
    return [MODELS[name] for name in names.split(",")]


def _measure(args: argparse.Namespace, models: list[ModelShape]) -> KernelReport:
    from tqdm import tqdm

    from headrace.bench.host import this_host
    from headrace.bench.kernel_cases import FULL, QUICK, StoredAs, cases_of
    from headrace.bench.kernel_report import BytePeak, KernelReport, time_cases
    from headrace.core.machine import last_cache_bytes, this_machine
    from headrace.kernels.cpu.bandwidth import read_bandwidth
    from headrace.kernels.cpu.tables import choose, kernel_tables
    from headrace.kernels.cpu.timing import KernelTimer

    cache_bytes = max(last_cache_bytes(), FEWEST_CACHE_BYTES)
    num_threads = this_machine().num_cores if args.threads is None else args.threads
    if num_threads < 1:
        raise ConfigError(f"--threads must be at least 1, got {num_threads}")
    timer = KernelTimer(
        choose(args.kernels, kernel_tables()).table,
        num_threads,
        least_bytes=QUICK_BYTES if args.quick else CACHES * cache_bytes,
        seconds=QUICK_SECONDS if args.quick else SECONDS,
        fewest_calls=1 if args.quick else FEWEST_CALLS,
    )
    names = None if args.formats is None else args.formats.split(",")
    formats = [StoredAs(row.name, row.qblock_size, row.is_float) for row in timer.formats(names)]
    cases = list(cases_of(models, formats, QUICK if args.quick else FULL))
    bar_format = "{desc:<18}{bar} {n_fmt}/{total_fmt} {elapsed}"
    with tqdm(total=len(cases), bar_format=bar_format, file=sys.stderr, disable=None) as bar:
        bar.set_description_str("reading memory")
        bandwidth = read_bandwidth(num_threads, BANDWIDTH_BYTES, QUICK_PEAK_S if args.quick else BANDWIDTH_S)
        bar.set_description_str("int8 peak")
        peak = timer.byte_peak(QUICK_PEAK_S if args.quick else PEAK_S)
        bar.set_description_str("kernels")
        times = time_cases(cases, timer, bar.update)
    return KernelReport(
        host=this_host(),
        kernels=timer.kernels,
        num_threads=num_threads,
        read_bandwidth_bytes_per_s=bandwidth,
        byte_peak=None if peak is None else BytePeak(chain=peak[0], ops_per_s=2 * peak[1]),
        times=times,
    )

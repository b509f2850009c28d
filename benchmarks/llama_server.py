# SPDX-License-Identifier: Apache-2.0
"""Headrace's server against llama-server, taking turns in one run under the same client: ratios of speed and
of waits. Needs a `llama-server` and a model file for it; see README.md beside this file."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

EXAMPLES = """\
examples:
  python benchmarks/llama_server.py smollm2 --llama-model smollm2-q4_0.gguf
  python benchmarks/llama_server.py smollm2 --llama-model smollm2-q4_0.gguf --workload shared --rounds 1 \\
      --llama-server ./llama.cpp/build/bin/llama-server
"""
WORKLOADS = ("idle", "unique", "shared")
READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Side:
    name: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    label: str
    path: tuple[str, ...]  # in the client's JSON
    factor: float = 1.0


FIGURES = (
    Figure("output tokens/s", ("output_tokens_per_s",)),
    Figure("TTFT p50, ms", ("ttft_s", "p50"), 1000),
    Figure("TTFT p99, ms", ("ttft_s", "p99"), 1000),
    Figure("ITL p50, ms", ("itl_s", "p50"), 1000),
    Figure("ITL p99, ms", ("itl_s", "p99"), 1000),
    Figure("whole load, s", ("elapsed_s",)),
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="what Headrace serves: a name of the catalogue, or a file")
    parser.add_argument("--llama-model", required=True, metavar="FILE", help="what llama-server serves")
    parser.add_argument("--llama-server", default="llama-server", metavar="PATH", help="default: from PATH")
    parser.add_argument(
        "--llama-args",
        default="--no-kv-unified",
        metavar="ARGS",
        help="more for it (default: --no-kv-unified)",
    )
    parser.add_argument("--headrace-args", default="", metavar="ARGS", help="more for headrace serve")
    parser.add_argument(
        "--workload", action="append", choices=WORKLOADS, metavar="NAME", help="default: all of them"
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns each (default: 3)")
    parser.add_argument("--num-requests", type=int, metavar="N", help="a workload (default: its own)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="default: all")
    parser.add_argument("--json", metavar="FILE", help="also write all results there")
    args = parser.parse_args()
    if shutil.which(args.llama_server) is None:
        parser.error(f"no llama-server at {args.llama_server!r}; benchmarks/README.md says how to get it")
    sides = (headrace(args), llama_cpp(args))
    workloads = args.workload or list(WORKLOADS)
    results: dict[str, dict[str, list[dict[str, object]]]] = {}
    for number in range(args.rounds):
        for side in sides:
            for workload in workloads:
                print(f"round {number + 1}: {side.name}, {workload}", file=sys.stderr, flush=True)
                result = measured(side, workload, number, args)
                results.setdefault(workload, {}).setdefault(side.name, []).append(result)
    print_table(results, args.rounds)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(results, file)
    return 0


def headrace(args: argparse.Namespace) -> Side:
    command = [sys.executable, "-m", "headrace", "serve", args.model, "--threads", str(args.threads)]
    return Side("headrace", (*command, *shlex.split(args.headrace_args)))


def llama_cpp(args: argparse.Namespace) -> Side:
    """16 slots with room for 2,048 tokens each, no page for browsers."""
    command = [args.llama_server, "-m", args.llama_model, "-t", str(args.threads), "-np", "16", "-c", "32768"]
    return Side("llama.cpp", (*command, "--no-webui", *shlex.split(args.llama_args)))


def measured(side: Side, workload: str, seed: int, args: argparse.Namespace) -> dict[str, object]:
    """One workload on a fresh server, which is gone afterwards."""
    client = [sys.executable, "-m", "headrace", "bench", "serve"]
    with running(side) as url:
        command = [*client, url, "--workload", workload, "--seed", str(seed), "--json", "-"]
        if args.num_requests:
            command += ["--num-requests", str(args.num_requests)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"the client failed on {side.name} with {done.returncode}:\n{done.stderr.strip()}")
    result: dict[str, object] = json.loads(done.stdout)
    if result["num_ok"] != result["num_sent"]:
        sys.exit(f"{side.name} answered {result['num_ok']} of {result['num_sent']}: {result['faults']}")
    return result


@contextmanager
def running(side: Side) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([*side.command, "--port", str(port)], stdout=log, stderr=log)
        try:
            wait_ready(process, url, side, log)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_ready(process: subprocess.Popen[bytes], url: str, side: Side, log: IO[bytes]) -> None:
    end_s = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < end_s:
        if process.poll() is not None:
            log.seek(0)
            sys.exit(
                f"{side.name} ended with {process.returncode}:\n{log.read().decode(errors='replace')[-2000:]}"
            )
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    sys.exit(f"{side.name} was not ready within {READY_TIMEOUT_S:.0f} s")


def print_table(results: dict[str, dict[str, list[dict[str, object]]]], rounds: int) -> None:
    print(f"{'workload':<10}{'':<18}{'headrace':>12}{'llama.cpp':>12}{'ratio':>9}   medians of {rounds}")
    for workload, sides in results.items():
        for figure in FIGURES:
            ours, theirs = (median_of(sides[name], figure) for name in ("headrace", "llama.cpp"))
            ratio = ours / theirs if theirs else float("nan")
            print(f"{workload:<10}{figure.label:<18}{ours:>12.1f}{theirs:>12.1f}{ratio:>9.3f}")


def median_of(rounds: list[dict[str, object]], figure: Figure) -> float:
    values = []
    for value in rounds:
        found: object = value
        for key in figure.path:
            assert isinstance(found, dict)
            found = found[key]
        assert isinstance(found, int | float)
        values.append(found * figure.factor)
    return statistics.median(values)


if __name__ == "__main__":
    sys.exit(main())

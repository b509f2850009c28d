# SPDX-License-Identifier: Apache-2.0
"""Headrace against llama.cpp on the same GGUF file, taking turns in one run: ratios of prompt and decode
speed. Needs a `llama-bench`; see README.md beside this file."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from headrace.weights import catalogue

EXAMPLES = """\
examples:
  python benchmarks/llama_cpp.py smollm2 gemma3-270m
  python benchmarks/llama_cpp.py smollm2 --llama-bench ./llama.cpp/build/bin/llama-bench --rounds 5
"""


@dataclass(frozen=True, slots=True)
class Speed:
    prompt: float  # tokens a second
    decode: float


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", help="names of the catalogue, or GGUF files")
    parser.add_argument("--llama-bench", default="llama-bench", metavar="PATH", help="default: from PATH")
    parser.add_argument("--rounds", type=int, default=3, help="turns each (default: 3)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="default: all")
    parser.add_argument("--prompt-tokens", type=int, default=512, help="default: 512")
    parser.add_argument("--output-tokens", type=int, default=64, help="default: 64")
    args = parser.parse_args()
    if shutil.which(args.llama_bench) is None:
        parser.error(f"no llama-bench at {args.llama_bench!r}; benchmarks/README.md says how to get it")
    heading = f"{'model':<16}{'':<8}{'headrace':>10}{'llama.cpp':>11}{'ratio':>8}"
    print(f"{heading}   medians of {args.rounds}, tokens/s")
    for model in args.models:
        path = catalogue.resolve(model)
        rounds = [(headrace(path, args), llama_cpp(path, args)) for _ in range(args.rounds)]
        for kind in ("prompt", "decode"):
            ours = statistics.median(getattr(mine, kind) for mine, _ in rounds)
            theirs = statistics.median(getattr(their, kind) for _, their in rounds)
            print(f"{model:<16}{kind:<8}{ours:>10.1f}{theirs:>11.1f}{ours / theirs:>8.2f}", flush=True)
    return 0


def headrace(path: Path, args: argparse.Namespace) -> Speed:
    command = [sys.executable, "-m", "headrace", "bench", "latency", str(path), "--json", "-"]
    command += ["--prompt-tokens", str(args.prompt_tokens), "--output-tokens", str(args.output_tokens)]
    command += ["--threads", str(args.threads), "--repetitions", "3"]
    latency = json.loads(output_of(command))["latency"]
    # llama-bench decodes from an empty context, so the same is taken of ours.
    return Speed(latency["prompt_tokens_per_s"]["p50"], latency["decode_from_one_tokens_per_s"]["p50"])


def llama_cpp(path: Path, args: argparse.Namespace) -> Speed:
    command = [args.llama_bench, "-m", str(path), "-t", str(args.threads), "-r", "3", "-o", "json"]
    command += ["-p", str(args.prompt_tokens), "-n", str(args.output_tokens)]
    prompt, decode = json.loads(output_of(command))
    return Speed(statistics.median(prompt["samples_ts"]), statistics.median(decode["samples_ts"]))


def output_of(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed with {done.returncode}:\n{done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())

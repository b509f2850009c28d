# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's own measurements, `llama-bench` and `llama-batched-bench`, as commands and as speeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.bench.peer_process import checked, output_of
from headrace.bench.peers import PeerFailed, PeersPlan, Speed


def measure_llama_cpp(
    llama_bench: str,
    batched_bench: str | None,
    model: Path,
    plan: PeersPlan,
    run: Callable[[Sequence[str]], str] = output_of,
) -> Speed:
    """One turn. Raises PeerFailed.

    Args:
        batched_bench: None: there is none, and nothing is said of many sequences.
    """
    prompt, decode = parse_llama_bench(run(llama_bench_command(llama_bench, model, plan)))
    rows = None
    if batched_bench is not None:
        rows = parse_batched_bench(run(batched_bench_command(batched_bench, model, plan)))
    return checked(Speed(prompt, decode, rows))


def llama_bench_command(binary: str, model: Path, plan: PeersPlan) -> list[str]:
    command = [binary, "-m", str(model), "-t", str(plan.num_threads), "-r", "1", "-o", "json"]
    return [*command, "-p", str(plan.prompt_tokens), "-n", str(plan.output_tokens)]


def batched_bench_command(binary: str, model: Path, plan: PeersPlan) -> list[str]:
    context = plan.num_rows * (plan.row_prompt_tokens + plan.output_tokens)
    command = [binary, "-m", str(model), "-t", str(plan.num_threads), "-c", str(context)]
    command += ["-npp", str(plan.row_prompt_tokens), "-ntg", str(plan.output_tokens)]
    return [*command, "-npl", str(plan.num_rows), "--output-format", "jsonl"]


def parse_llama_bench(text: str) -> tuple[float, float]:
    """Prompt and decode tokens a second of `-o json`: of the test of a prompt, and of the other."""
    try:
        tests = json.loads(text)
        of_prompt = [test for test in tests if test["n_prompt"] and not test["n_gen"]]
        of_decode = [test for test in tests if test["n_gen"] and not test["n_prompt"]]
        prompt = statistics.median(of_prompt[0]["samples_ts"])
        return float(prompt), float(statistics.median(of_decode[0]["samples_ts"]))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise PeerFailed("llama-bench printed nothing that can be read as its JSON") from error


def parse_batched_bench(text: str) -> float:
    """Decode tokens a second of all sequences, of `--output-format jsonl`, among whatever else it prints."""
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                return float(json.loads(line)["speed_tg"])
            except (ValueError, KeyError, TypeError):
                continue
    raise PeerFailed("llama-batched-bench printed no line that can be read")


def beside(llama_bench: str) -> str | None:
    """The `llama-batched-bench` in the same folder."""
    path = Path(llama_bench).with_name("llama-batched-bench")
    return str(path) if path.is_file() else None

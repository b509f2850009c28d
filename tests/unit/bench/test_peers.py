# SPDX-License-Identifier: Apache-2.0
"""`headrace bench peers`: whose turn it is, what is made of what peers print, and peers that are not there,
crash or talk nonsense. The peers are little scripts."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from headrace.bench.host import Host
from headrace.bench.llama_bench import (
    beside,
    measure_llama_cpp,
    parse_batched_bench,
    parse_llama_bench,
)
from headrace.bench.peer_process import has_module, output_of, speed_of_script
from headrace.bench.peers import PeerFailed, PeersPlan, Side, Speed, take_turns
from headrace.bench.peers_report import PeersReport, as_json, report_lines, side_result
from headrace.cli.main import main
from headrace.core.errors import ConfigError

PLAN = PeersPlan(num_threads=2, rounds=3)
LLAMA_BENCH = json.dumps(
    [
        {"n_prompt": 512, "n_gen": 0, "samples_ts": [380.0, 400.0, 390.0]},
        {"n_prompt": 0, "n_gen": 128, "samples_ts": [93.5]},
    ]
)
BATCHED_BENCH = (
    'main: n_kv_max = 2560\n\n{"pp": 32, "tg": 128, "pl": 16, "speed_pp": 9.0, "speed_tg": 229.5}\n'
)
HOST = Host(cpu="A CPU", system="Linux", python="3", headrace="0")


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!{sys.executable}\n{body}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def side(name: str, speeds: list[Speed], seen: list[str]) -> Side:
    def measure() -> Speed:
        seen.append(name)
        if not speeds:
            raise PeerFailed("out of breath")
        return speeds.pop(0)

    return Side(name, "model.gguf", measure)


def test_turns_alternate_and_a_failure_ends_only_its_own() -> None:
    seen: list[str] = []
    a = side("a", [Speed(100, 10, 50), Speed(300, 30, 70), Speed(200, 20, 60)], seen)
    b = side("b", [Speed(50, 5, None)], seen)
    begun: list[str] = []
    turns = take_turns([a, b], 3, begun.append)
    assert seen == ["a", "b", "b", "a", "a"]
    assert begun == ["a", "b", "b", "a", "a", "b"]
    ours, theirs = (side_result(t) for t in turns)
    assert ours.median == Speed(200, 20, 60)
    assert ours.failure is None
    assert theirs.median == Speed(50, 5, None)
    assert theirs.failure == "out of breath"


def test_report() -> None:
    sides = [
        side("headrace", [Speed(1000, 150, 600)], []),
        side("llama.cpp", [Speed(200, 100, 200)], []),
        side("openvino", [Speed(500, 75, None)], []),
        side("transformers", [], []),
    ]
    ours, *theirs = (side_result(turns) for turns in take_turns(sides, 1))
    absent = {"other": "get it there"}
    report = PeersReport(host=HOST, plan=PLAN, headrace=ours, peers=tuple(theirs), absent=absent)
    lines = list(report_lines(report))
    llama, openvino = (next(line for line in lines if line.startswith(n)) for n in ("llama.cpp", "openvino"))
    assert llama.split()[-3:] == ["5.00", "1.50", "3.00"]
    assert openvino.split()[-4:] == ["-", "2.00", "2.00", "-"]
    assert "failed: transformers: out of breath" in lines
    assert "not here: other: get it there" in lines
    peers = json.loads(json.dumps(as_json(report)))["peers"]
    assert [peer["headrace_ratio"] and peer["headrace_ratio"]["prompt"] for peer in peers] == [5, 2, None]


def test_llama_bench_output() -> None:
    assert parse_llama_bench(LLAMA_BENCH) == (390.0, 93.5)
    assert parse_batched_bench(BATCHED_BENCH) == 229.5
    for text in ("", "[]", "{}", "error: no such model", '[{"n_prompt": 512, "n_gen": 0}]'):
        with pytest.raises(PeerFailed, match="llama-bench printed"):
            parse_llama_bench(text)
    with pytest.raises(PeerFailed, match="llama-batched-bench printed"):
        parse_batched_bench("main: nothing\n{ not json")


def test_llama_cpp_turn_runs_both_commands() -> None:
    commands: list[list[str]] = []

    def run(command: object) -> str:
        commands.append(list(command))  # type: ignore[call-overload]
        return LLAMA_BENCH if commands[-1][0] == "llama-bench" else BATCHED_BENCH

    model = Path("model.gguf")
    assert measure_llama_cpp("llama-bench", "batched", model, PLAN, run) == Speed(390.0, 93.5, 229.5)
    assert commands[0][-4:] == ["-p", "512", "-n", "128"]
    assert commands[1][commands[1].index("-npl") + 1] == "16"
    assert measure_llama_cpp("llama-bench", None, model, PLAN, run) == Speed(390.0, 93.5, None)


def test_batched_bench_is_looked_for_beside(tmp_path: Path) -> None:
    bench = script(tmp_path / "llama-bench", "")
    assert beside(str(bench)) is None
    batched = script(tmp_path / "llama-batched-bench", "")
    assert beside(str(bench)) == str(batched)


def test_script_peer(tmp_path: Path) -> None:
    good = script(
        tmp_path / "good",
        "import json, sys\nprint('noise')\nn = json.loads(sys.argv[1])['n']\n"
        "print(json.dumps({'prompt': n, 'decode': 2, 'rows': None}))",
    )
    assert speed_of_script([sys.executable, str(good)], {"n": 7}) == Speed(7.0, 2.0, None)
    for body, message in (
        ("import sys; print('first', file=sys.stderr); sys.exit('no memory')", "status 1: no memory"),
        ("import os; os.kill(os.getpid(), 11)", "signal 11"),
        ("print('hello')", "no speed that can be read"),
        ("", "no speed that can be read"),
        ('print(\'{"prompt": 0, "decode": 2, "rows": 1}\')', "speed of 0 tokens/s"),
    ):
        bad = script(tmp_path / "bad", body)
        with pytest.raises(PeerFailed, match=message):
            speed_of_script([sys.executable, str(bad)], {})
    with pytest.raises(PeerFailed, match="cannot run"):
        output_of([str(tmp_path / "missing")])


def test_has_module(tmp_path: Path) -> None:
    assert has_module(sys.executable, "json")
    assert not has_module(sys.executable, "no_such_module")
    assert not has_module(str(tmp_path / "python"), "json")


def test_plan_refuses() -> None:
    with pytest.raises(ConfigError, match="rounds must be at least 1"):
        PeersPlan(num_threads=1, rounds=0)


@pytest.fixture
def own_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Headrace's turn without a model: this Python, told to run a script. Gives a file to name as model."""
    speed = json.dumps({"prompt": 1000, "decode": 187, "rows": 600})
    fake = script(tmp_path / "python", f"import sys; print({speed!r}) if '-m' in sys.argv else sys.exit(1)")
    monkeypatch.setattr("sys.executable", str(fake))
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    return model


def test_command(own_turn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = tmp_path / "llama-bench"
    bench.write_text(f"#!/bin/sh\ncat <<'END'\n{LLAMA_BENCH}\nEND\n")
    bench.chmod(0o755)
    command = ["bench", "peers", str(own_turn), "--rounds", "2", "--threads", "1"]
    assert main([*command, "--llama-bench", str(bench)]) == 0
    out = capsys.readouterr().out
    assert "2.00" in next(line for line in out.splitlines() if line.startswith("llama.cpp model.gguf"))
    assert "not here: openvino: " in out
    assert "not here: transformers: " in out


def test_command_ends_badly_if_a_named_peer_does(
    own_turn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bench", "peers", str(own_turn), "--rounds", "1", "--threads", "1"]
    assert main([*command, "--peers", "openvino", "--json", "-"]) == 1
    assert "openvino" in json.loads(capsys.readouterr().out)["absent"]
    bench = tmp_path / "llama-bench"
    bench.write_text("#!/bin/sh\necho 'cannot load the model' >&2\nexit 3\n")
    bench.chmod(0o755)
    assert main([*command, "--llama-bench", str(bench)]) == 1
    assert "failed: llama.cpp model.gguf: ended with status 3: cannot load" in capsys.readouterr().out
    assert main([*command, "--llama-bench", str(tmp_path / "nowhere")]) == 1
    assert "not here: llama.cpp: no llama-bench at" in capsys.readouterr().out
    assert main([*command, "--peers", "vllm"]) == 1
    assert "--peers knows llama.cpp, openvino, transformers" in capsys.readouterr().err

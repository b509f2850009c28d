# SPDX-License-Identifier: Apache-2.0
"""`headrace bench` and `headrace eval` as typed, on a real model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli.main import main

TEXT = "The lighthouse keeper counted the ships that passed, and wrote each name in his book. " * 8


def test_eval_ppl(smollm2_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, result = tmp_path / "text.txt", tmp_path / "result.json"
    text.write_text(TEXT, encoding="utf-8")
    command = ["eval", "ppl", str(smollm2_path), str(text), "--window", "32", "--windows", "3"]
    assert main([*command, "--json", str(result)]) == 0
    values = json.loads(result.read_text())
    assert values["num_windows"] == 3
    assert values["num_scored"] == 3 * 15
    assert 1 < values["perplexity"] < 200
    assert f"perplexity  {values['perplexity']:.4f}" in capsys.readouterr().out

    assert main([*command, "--json", "-"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["perplexity"] == pytest.approx(values["perplexity"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--window", "32", "--windows", "99"], "asked for 99"),
        (["--window", "1"], "at least 3"),
        (["--window", "10000000"], "does not fit"),
    ],
)
def test_eval_ppl_refuses(
    options: list[str], message: str, smollm2_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT, encoding="utf-8")
    assert main(["eval", "ppl", str(smollm2_path), str(text), *options]) == 1
    assert message in capsys.readouterr().err


def test_eval_ppl_of_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing, binary = tmp_path / "missing.txt", tmp_path / "binary.txt"
    binary.write_bytes(b"\xff\xfe\xfd")
    for path in (missing, binary):
        assert main(["eval", "ppl", "smollm2", str(path)]) == 1
        assert str(path) in capsys.readouterr().err


def test_bench_latency(smollm2_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = tmp_path / "result.json"
    sizes = ["--prompt-tokens", "8", "--output-tokens", "3", "--repetitions", "1", "--threads", "1"]
    assert main(["bench", "latency", str(smollm2_path), *sizes, "--json", str(result)]) == 0
    values = json.loads(result.read_text())
    # SmolLM2 has 134.5 million weights, most of them in 4 to 5 bits and the head in 8.
    assert 70e6 < values["weight_bytes_per_token"] < 160e6
    assert values["num_threads"] == 1
    assert values["launch_to_first_token_s"]["count"] == 3
    assert values["mbu"] > 0
    assert 0 <= values["overhead_share"] < 1
    for name in ("prompt_tokens_per_s", "decode_tokens_per_s", "decode_from_one_tokens_per_s"):
        assert values["latency"][name]["p50"] > 0
    out = capsys.readouterr().out
    assert "prompt of 8, tokens/s" in out
    assert "launch to first token, s" in out


def test_bench_latency_of_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "latency", str(tmp_path / "no.gguf")]) == 1
    error = capsys.readouterr().err
    assert "no.gguf" in error
    assert "ended with status" not in error


def test_bench_latency_refuses_sizes(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "latency", str(smollm2_path), "--output-tokens", "1"]) == 1
    assert "output_tokens must be at least 2" in capsys.readouterr().err

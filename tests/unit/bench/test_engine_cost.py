# SPDX-License-Identifier: Apache-2.0
"""The engine's cost beside the computation: by hand from steps, and measured on the fake backend."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.bench.engine_steps import RowLoad, engine_cost
from headrace.cli.main import main
from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.events import StepRecord


def step(num_prompt: int, num_drawn: int, step_s: float, native_s: float) -> StepRecord:
    return StepRecord(
        num_rows=2,
        num_tokens=num_prompt + num_drawn,
        num_prompt_tokens=num_prompt,
        num_drawn=num_drawn,
        step_s=step_s,
        native_s=native_s,
        itl_s=(),
    )


def test_by_hand() -> None:
    steps = [step(100, 1, 0.5, 0.5), step(0, 2, 0.010, 0.009), step(0, 2, 0.030, 0.027), step(0, 1, 1.0, 0.2)]
    cost = engine_cost(steps, [(32, 24), (64, 48)], 2)
    assert cost.decode_step_s.count == 2
    assert cost.decode_step_s.p50 == pytest.approx(0.020)
    assert cost.outside_s.high == pytest.approx(0.003)
    assert cost.outside_share == pytest.approx(0.1)
    assert cost.outside_share_all == pytest.approx(1 - 0.736 / 1.54)
    assert cost.decode_tokens_per_s == pytest.approx(100)
    assert cost.prompt_tokens_per_s == pytest.approx(200)
    assert cost.paging_waste == pytest.approx(0.25)
    with pytest.raises(HeadraceError, match="all 3 rows"):
        engine_cost(steps, [], 3)


@pytest.mark.parametrize("field", ["num_rows", "prompt_tokens", "output_tokens", "rounds"])
def test_a_load_names_the_bad_value(field: str) -> None:
    values = {"num_rows": 2, "prompt_tokens": 4, "output_tokens": 4, "rounds": 2, field: 0}
    with pytest.raises(ConfigError, match=field):
        RowLoad(**values)


def test_on_the_fake_backend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "engine.json"
    words = ["bench", "engine", "--fake-step-ms", "2", "--rows", "4", "--prompt-tokens", "20"]
    assert main([*words, "--output-tokens", "40", "--rounds", "2", "--json", str(path)]) == 0
    assert "4 at once" in capsys.readouterr().out
    cost = json.loads(path.read_text())["cost"]
    assert cost["decode_step_s"]["count"] == 2 * 39  # the first token comes with the prompt
    assert cost["num_steps"] == 2 * 40
    assert cost["decode_step_s"]["low"] >= 0.002
    assert 0 < cost["outside_share"] < 1
    assert 0 <= cost["paging_waste"] < 0.5


def test_either_a_model_or_the_fake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "engine"]) == 1
    assert main(["bench", "engine", "m", "--fake-step-ms", "1"]) == 1
    assert "either a MODEL or --fake-step-ms" in capsys.readouterr().err

# SPDX-License-Identifier: Apache-2.0
"""`headrace bench kernels` as typed, quickly, and the native timing below it. No time is asserted."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from headrace import _native
from headrace.cli.main import main
from headrace.kernels.cpu.timing import KernelTimer

FAST = ["bench", "kernels", "--quick", "--models", "135m", "--threads", "2"]


def test_quick_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result, picture = tmp_path / "kernels.json", tmp_path / "roofline.svg"
    assert main([*FAST, "--formats", "Q4_1,F16", "--json", str(result), "--svg", str(picture)]) == 0
    values = json.loads(result.read_text())
    assert values["num_threads"] == 2
    assert {entry["kernel"] for entry in values["times"]} == {
        "matmul",
        "attention",
        "rms_norm",
        "quantize",
        "gated",
    }
    assert {entry["kind"] for entry in values["times"]} == {"Q4_1", "F16", "f16", "f32"}
    assert all(entry["seconds"]["p50"] > 0 for entry in values["times"])
    ElementTree.parse(picture)
    assert "GB/s read" in capsys.readouterr().out


def test_reference_has_no_peak(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FAST, "--formats", "Q4_1", "--kernels", "reference", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["byte_peak"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--models", "7b"], "--models knows 135m, 1b, 8b"),
        (["--formats", "Q9"], "'Q9' is no format"),
        (["--kernels", "sse2"], "'sse2' do not run"),
        (["--threads", "0"], "--threads must be at least 1"),
    ],
)
def test_refuses(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernels", "--quick", *options]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("kernels", _native.kernel_tables())
def test_every_table_is_timed(kernels: str) -> None:
    timer = KernelTimer(kernels, 2, least_bytes=100_000, seconds=0.0, fewest_calls=2)
    kinds = timer.formats(None)
    assert len({row.name for row in kinds}) == len(kinds) >= 8
    for row in kinds:
        for tokens in (1, 17):
            seconds, num_bytes = timer.product(row.name, 24, 256, tokens)
            assert len(seconds) == 2
            assert num_bytes >= 24 * 256 // 2
    for context, tokens in ((1, 1), (700, 1), (700, 20)):
        assert len(timer.attention(4, 2, 64, context, tokens)) == 2
    for name in ("rms_norm", "quantize", "gated"):
        assert len(timer.rows(name, 64, 5)) == 2
    peak = timer.byte_peak(0.0)
    assert (peak is None) == (kernels == "reference")


def test_native_timing_refuses_what_does_not_fit() -> None:
    team = _native.Team(1)
    with pytest.raises(ValueError, match="one matrix"):
        _native.timing.product("reference", [], 1, team, 0.0, 1)
    with pytest.raises(ValueError, match="fit together"):
        _native.timing.attention("reference", 3, 2, 64, 16, 1, 1, team, 0.0, 1)
    with pytest.raises(ValueError, match="no kernel 'softmax'"):
        _native.timing.rows("reference", "softmax", 64, 1, team, 0.0, 1)

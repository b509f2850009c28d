# SPDX-License-Identifier: Apache-2.0
"""All that `headrace bench engine` finds out, as one value, and as lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.bench.engine_steps import EngineCost, RowLoad
from headrace.bench.host import Host
from headrace.bench.spread import Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    backend: str
    host: Host
    load: RowLoad
    cost: EngineCost


def report_lines(report: EngineReport) -> Iterator[str]:
    load, cost = report.load, report.cost
    yield f"backend   {report.backend}"
    yield f"machine   {report.host.cpu}, {report.host.system}"
    yield (
        f"rows      {load.num_rows} at once, of {load.prompt_tokens} prompt tokens and {load.output_tokens} "
        f"out; {load.rounds} rounds"
    )
    yield ""
    yield f"{'milliseconds':<34}{'p50':>10}{'p90':>10}{'p99':>10}{'max':>10}"
    yield _row("step, all rows drawing", cost.decode_step_s)
    yield _row("of it outside computation", cost.outside_s)
    yield ""
    num_steps = cost.decode_step_s.count
    yield f"outside computation   {100 * cost.outside_share:>8.2f} %   of {num_steps} steps, all rows drawing"
    yield f"                      {100 * cost.outside_share_all:>8.2f} %   of all {cost.num_steps} steps"
    yield f"decode tokens/s       {cost.decode_tokens_per_s:>8.1f}"
    yield f"prompt tokens/s       {cost.prompt_tokens_per_s:>8.1f}"
    yield f"wasted by paging      {100 * cost.paging_waste:>8.2f} %   of token places in held blocks"


def _row(label: str, spread: Spread) -> str:
    values = (spread.p50, spread.p90, spread.p99, spread.high)
    return f"{label:<34}" + "".join(f"{value * 1000:>10.3f}" for value in values)

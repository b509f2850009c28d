# SPDX-License-Identifier: Apache-2.0
"""All that `headrace bench peers` finds out, as one value, and as lines for people."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from headrace.bench.host import Host
from headrace.bench.peers import PeersPlan, Speed, Turns


@dataclass(frozen=True, slots=True, kw_only=True)
class SideResult:
    name: str
    model: str
    speeds: tuple[Speed, ...]  # of each round
    median: Speed | None  # None: it never got through a turn
    failure: str | None


@dataclass(frozen=True, slots=True)
class Ratio:
    """Headrace's speed as a multiple of a peer's."""

    prompt: float
    decode: float
    rows: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersReport:
    host: Host
    plan: PeersPlan
    headrace: SideResult
    peers: tuple[SideResult, ...]
    absent: dict[str, str]  # peers that are not here, and what to do for them to be


def side_result(turns: Turns) -> SideResult:
    speeds = tuple(turns.speeds)
    return SideResult(
        name=turns.side.name,
        model=turns.side.model,
        speeds=speeds,
        median=median_of(speeds) if speeds else None,
        failure=turns.failure,
    )


def median_of(speeds: Sequence[Speed]) -> Speed:
    rows = [speed.rows for speed in speeds if speed.rows is not None]
    return Speed(
        statistics.median(speed.prompt for speed in speeds),
        statistics.median(speed.decode for speed in speeds),
        statistics.median(rows) if rows else None,
    )


def ratio_of(ours: Speed, theirs: Speed) -> Ratio:
    has_rows = ours.rows is not None and theirs.rows is not None
    return Ratio(
        ours.prompt / theirs.prompt,
        ours.decode / theirs.decode,
        ours.rows / theirs.rows if has_rows else None,  # type: ignore[operator]
    )


def as_json(report: PeersReport) -> dict[str, object]:
    values = asdict(report)
    ours = report.headrace.median
    for entry, peer in zip(values["peers"], report.peers, strict=True):
        known = ours is not None and peer.median is not None
        entry["headrace_ratio"] = asdict(ratio_of(ours, peer.median)) if known else None  # type: ignore[arg-type]
    return values


def report_lines(report: PeersReport) -> Iterator[str]:
    plan, ours = report.plan, report.headrace.median
    yield f"model     {report.headrace.model}, {plan.num_threads} threads"
    yield f"machine   {report.host.cpu}, {report.host.system}"
    yield (
        f"rounds    {plan.rounds} by turns, medians: a prompt of {plan.prompt_tokens}, then "
        f"{plan.output_tokens} tokens of 1 and of {plan.num_rows} sequences"
    )
    yield ""
    width = max(len(label(side)) for side in (report.headrace, *report.peers)) + 1
    rows = f"decode {plan.num_rows}"
    yield f"{'tokens/s':<{width}}{'prompt':>10}{'decode 1':>10}{rows:>11}   Headrace is so many times as fast"
    for side in (report.headrace, *report.peers):
        if side.median is None:
            continue
        line = f"{label(side):<{width}}{side.median.prompt:>10.1f}{side.median.decode:>10.1f}"
        line += f"{_number(side.median.rows, 1):>11}"
        if side is not report.headrace and ours is not None:
            ratio = ratio_of(ours, side.median)
            line += f"   {ratio.prompt:>6.2f}{ratio.decode:>8.2f}{_number(ratio.rows, 2):>8}"
        yield line
    for side in (report.headrace, *report.peers):
        if side.failure is not None:
            yield f"failed: {label(side)}: {side.failure}"
    for name, how in report.absent.items():
        yield f"not here: {name}: {how}"


def label(side: SideResult) -> str:
    """Its name, and its model where that may be another than Headrace's."""
    return f"{side.name} {side.model}" if side.name == "llama.cpp" else side.name


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"

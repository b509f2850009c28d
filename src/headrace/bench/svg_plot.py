# SPDX-License-Identifier: Apache-2.0
"""Plots as inline SVG: a distribution curve, and bars on a line of time. The page's style colours them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 220
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 10, 34
MAX_POINTS = 400  # of a curve; more do not show


@dataclass(frozen=True, slots=True)
class Bar:
    """A request on the line of time, in seconds."""

    label: str
    begin: float
    first: float | None  # its first token; None: none came
    end: float
    is_ok: bool


def cdf(title: str, values_ms: Sequence[float], marks: Sequence[float] = ()) -> str:
    """The share of values that are at most x. `marks`: targets, as upright lines."""
    ordered = sorted(values_ms)
    step = max(len(ordered) // MAX_POINTS, 1)
    kept = [(ordered[i], (i + 1) / len(ordered)) for i in range(0, len(ordered), step)]
    kept.append((ordered[-1], 1.0))
    top = max([ordered[-1], *marks]) * 1.02 or 1.0

    def at(x: float, share: float) -> str:
        return f"{_x(x / top):.1f},{_y(share):.1f}"

    points = [at(ordered[0], 0.0)]
    for (x, share), (_, before) in zip(kept, [(0.0, 0.0), *kept], strict=False):
        points += [at(x, before), at(x, share)]
    body = [*_grid(top, "ms"), f'<polyline class="curve" points="{" ".join(points)}"/>']
    for mark in marks:
        place = f"{_x(mark / top):.1f}"
        body.append(f'<line class="mark" x1="{place}" x2="{place}" y1="{TOP}" y2="{_y(0):.1f}"/>')
    return _figure(title, body, HEIGHT)


def timeline(title: str, bars: Sequence[Bar]) -> str:
    """One bar a request: waiting for the first token, then streaming."""
    row = max(min(14.0, 900 / max(len(bars), 1)), 2.0)
    height = math.ceil(TOP + BOTTOM + row * len(bars))
    end = max((bar.end for bar in bars), default=1.0) * 1.02 or 1.0
    body = list(_time_axis(end, height))
    for number, bar in enumerate(bars):
        y = TOP + number * row
        first = bar.end if bar.first is None else bar.first
        kind = "wait" if bar.is_ok else "failed"
        note = f"<title>{escape(bar.label)}</title>"
        body.append(_rect(kind, bar.begin / end, first / end, y, row * 0.8, note))
        if bar.first is not None:
            body.append(
                _rect("run" if bar.is_ok else "failed", first / end, bar.end / end, y, row * 0.8, note)
            )
    return _figure(title, body, height)


def _rect(kind: str, begin: float, end: float, y: float, height: float, note: str) -> str:
    width = max((end - begin) * (WIDTH - LEFT - RIGHT), 0.8)
    return (
        f'<rect class="{kind}" x="{_x(begin):.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}">'
        f"{note}</rect>"
    )


def _grid(top: float, unit: str) -> Iterator[str]:
    for share in (0.0, 0.5, 0.9, 1.0):
        y = _y(share)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="axis" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>'
    for tick in _ticks(top):
        x = _x(tick / top)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{_y(0)}"/>'
        yield f'<text class="axis" x="{x:.1f}" y="{HEIGHT - 14}" text-anchor="middle">{tick:g}</text>'
    yield f'<text class="axis" x="{WIDTH - RIGHT}" y="{HEIGHT - 2}" text-anchor="end">{unit}</text>'


def _time_axis(end: float, height: int) -> Iterator[str]:
    for tick in _ticks(end):
        x = _x(tick / end)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - BOTTOM}"/>'
        yield f'<text class="axis" x="{x:.1f}" y="{height - 14}" text-anchor="middle">{tick:g}</text>'
    yield f'<text class="axis" x="{WIDTH - RIGHT}" y="{height - 2}" text-anchor="end">s</text>'


def _ticks(top: float) -> list[float]:
    """Round numbers from 0 to `top`, six or so."""
    rough = top / 6
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    return [round(step * number, 10) for number in range(int(top / step) + 1)]


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)


def _figure(title: str, body: Sequence[str], height: int) -> str:
    drawn = "\n".join(body)
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">\n{drawn}\n</svg></figure>'
    )

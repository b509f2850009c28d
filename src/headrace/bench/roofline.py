# SPDX-License-Identifier: Apache-2.0
"""The roofline picture as an SVG file of its own: what each kernel reaches over how much it computes a byte,
under the slope of memory and the flat roof of the peak. Both axes are logarithmic."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from headrace.bench.kernel_report import KernelReport, KernelTime

WIDTH, HEIGHT = 900, 560
LEFT, RIGHT, TOP, BOTTOM = 70, 170, 50, 50
COLOURS = ("#1f6feb", "#cf3f4f", "#2f9e6b", "#e3a33c", "#8250df", "#0a7d8c", "#b35900", "#6e7781", "#d63384")
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1c2430; } .title { font-size: 15px; font-weight: 600; }
.paper { fill: #ffffff; } .grid { stroke: #d5dae1; } .roof { fill: none; stroke: #1c2430; stroke-width: 2; }
circle { fill-opacity: 0.75; }
"""


def roofline(report: KernelReport) -> str:
    """Every kernel whose operations are counted. Raises nothing for an empty report: it draws the roofs."""
    times = [time for time in report.times if time.multiply_adds]
    axes = _Axes(report, times)
    kinds = list(dict.fromkeys(f"{time.kernel} {time.kind}" for time in times))
    colour = {kind: COLOURS[i % len(COLOURS)] for i, kind in enumerate(kinds)}
    body = [*axes.grid(), *_roofs(report, axes)]
    for time in times:
        x, y = axes.x(_intensity(time)), axes.y(time.ops_per_s)
        note = f"{time.model} {time.kernel} {time.kind} {time.shape}, {time.tokens} tokens: "
        note += f"{time.ops_per_s / 1e9:.1f} GOP/s, {time.bytes_per_s / 1e9:.1f} GB/s"
        radius = 2.5 + math.log2(time.tokens) / 3
        fill = colour[f"{time.kernel} {time.kind}"]
        body.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{fill}">'
            f"<title>{escape(note)}</title></circle>"
        )
    body += _legend(colour)
    title = f"{report.kernels}, {report.num_threads} threads: {report.host.cpu}"
    drawn = "\n".join(body)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">\n<style>{STYLE}</style>\n'
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>\n'
        f'<text class="title" x="{LEFT}" y="28">{escape(title)}</text>\n{drawn}\n</svg>\n'
    )


class _Axes:
    """From operations a byte and operations a second to places in the picture, whole decades each."""

    def __init__(self, report: KernelReport, times: Sequence[KernelTime]) -> None:
        bandwidth = report.read_bandwidth_bytes_per_s
        tops = [time.ops_per_s for time in times] + [bandwidth]
        rights = [_intensity(time) for time in times] + [1.0]
        if report.byte_peak is not None:
            tops.append(report.byte_peak.ops_per_s)
            rights.append(2 * report.byte_peak.ops_per_s / bandwidth)
        self.left, self.right = math.floor(math.log10(min(rights))), math.ceil(math.log10(max(rights)))
        self.right = max(self.right, self.left + 1)
        self.low, self.high = math.floor(math.log10(min(tops))), math.ceil(math.log10(max(tops)))
        self.high = max(self.high, self.low + 1)

    def x(self, intensity: float) -> float:
        share = (math.log10(intensity) - self.left) / (self.right - self.left)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, ops_per_s: float) -> float:
        share = (math.log10(ops_per_s) - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def grid(self) -> Iterator[str]:
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        for decade in range(self.left, self.right + 1):
            x = self.x(10.0**decade)
            yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>'
            yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{10.0**decade:g}</text>'
        for decade in range(self.low, self.high + 1):
            y = self.y(10.0**decade)
            yield f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0 ** (decade - 9):g}</text>'
        yield f'<text x="{right}" y="{bottom + 38}" text-anchor="end">operations a byte</text>'
        yield f'<text x="{LEFT}" y="{TOP - 8}">GOP/s</text>'


def _roofs(report: KernelReport, axes: _Axes) -> Iterator[str]:
    """The slope up to where it meets the peak, then level; without a peak, the slope as far as it goes."""
    bandwidth, peak = report.read_bandwidth_bytes_per_s, report.byte_peak
    roof = 10.0**axes.high if peak is None else peak.ops_per_s
    begin = max(10.0**axes.left, 10.0**axes.low / bandwidth)
    ridge = min(roof / bandwidth, 10.0**axes.right)
    corners = [(begin, begin * bandwidth), (ridge, ridge * bandwidth)]
    if peak is not None:
        corners.append((10.0**axes.right, peak.ops_per_s))
    points = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in corners)
    yield f'<polyline class="roof" points="{points}"/>'
    yield f'<text x="{LEFT + 8}" y="{TOP + 16}">memory {bandwidth / 1e9:.1f} GB/s</text>'
    if peak is not None:
        x, y = WIDTH - RIGHT, axes.y(peak.ops_per_s) - 6
        label = f"int8 peak {peak.ops_per_s / 1e9:.0f} GOP/s"
        yield f'<text x="{x}" y="{y:.1f}" text-anchor="end">{label}</text>'


def _legend(colour: dict[str, str]) -> Iterator[str]:
    for row, (kind, value) in enumerate(colour.items()):
        y = TOP + 10 + 20 * row
        yield f'<circle cx="{WIDTH - RIGHT + 20}" cy="{y}" r="5" fill="{value}"/>'
        yield f'<text x="{WIDTH - RIGHT + 32}" y="{y + 4}">{escape(kind)}</text>'
    yield f'<text x="{WIDTH - RIGHT + 14}" y="{TOP + 24 + 20 * len(colour)}">larger: more tokens</text>'


def _intensity(time: KernelTime) -> float:
    return 2 * time.multiply_adds / time.num_bytes

# SPDX-License-Identifier: Apache-2.0
"""The report of `headrace bench serve` as one page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from headrace.bench.serve_lines import report_lines
from headrace.bench.serve_report import ServeReport
from headrace.bench.svg_plot import Bar, cdf, timeline

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --paper: #ffffff; --faint: #d5dae1; --dim: #5b6675;
  --curve: #1f6feb; --wait: #e3a33c; --run: #2f9e6b; --bad: #cf3f4f; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e2e7ee; --paper: #14181e; --faint: #2e3641; --dim: #94a0b0;
    --curve: #6cb0ff; --wait: #d99b3a; --run: #4cc38a; --bad: #f07178; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 960px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } pre { font: 13px/1.45 ui-monospace, monospace; overflow-x: auto; }
figure { margin: 1.5rem 0; } figcaption { font-weight: 600; } svg { width: 100%; height: auto; }
.grid { stroke: var(--faint); stroke-width: 1; } .axis { fill: var(--dim); font-size: 11px; }
.curve { fill: none; stroke: var(--curve); stroke-width: 2; }
.mark { stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 5 4; }
.wait { fill: var(--wait); } .run { fill: var(--run); } .failed { fill: var(--bad); }
"""


def html_page(report: ServeReport) -> str:
    title = f"{report.facts.workload} on {report.facts.model}"
    lines = escape("\n".join(report_lines(report)))
    figures = "\n".join(_figures(report))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n<pre>{lines}</pre>\n{figures}\n</body>\n</html>\n"
    )


def _figures(report: ServeReport) -> Iterator[str]:
    good = [record for record in report.records if record.is_ok]
    marks = {target.of: target.at_most_s * 1000 for target in report.targets}
    for name, title, values_s in (
        ("ttft", "Time to first token, share of requests", [r.emissions_s[0] for r in good]),
        ("itl", "Gaps between tokens, share of gaps", [gap for r in good for gap in r.itl_s]),
        ("e2e", "Whole answers, share of requests", [r.e2e_s for r in good]),
    ):
        if values_s:
            values_ms = [value * 1000 for value in values_s]
            yield cdf(title, values_ms, [marks[name]] if name in marks else [])
    bars = [
        Bar(
            label=f"{r.name}: {r.error or f'{r.num_prompt} tokens in, {r.num_output} out'}",
            begin=r.sent_s,
            first=None if r.ttft_s is None else r.sent_s + r.ttft_s,
            end=r.sent_s + r.e2e_s,
            is_ok=r.error is None,
        )
        for r in report.records
    ]
    if bars:
        yield timeline("Requests in time: waiting for the first token, then streaming", bars)

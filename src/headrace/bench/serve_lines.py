# SPDX-License-Identifier: Apache-2.0
"""The report of `headrace bench serve` as lines for people."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.bench.long_prompt import LongPrompt
from headrace.bench.serve_report import ServeReport
from headrace.bench.spread import Spread

UNLIKE = ("idle", "unique", "long-prompt")  # workloads whose prompts have nothing in common
FEW_HITS = 0.05
COLUMNS = ("p50", "p90", "p99", "mean", "max")


def report_lines(report: ServeReport) -> Iterator[str]:
    facts = report.facts
    if report.interrupted:
        yield "interrupted: this is what there was until then"
    yield f"server    {facts.url}, model {facts.model}"
    yield f"machine   {facts.host.cpu}, {facts.host.system} (of this client)"
    yield f"workload  {facts.workload}, {facts.pace}, seed {facts.seed}; prompt lengths by {facts.prompts_by}"
    if not facts.ignores_eos:
        yield "          the server refuses ignore_eos: answers may end early"
    if facts.num_clipped:
        yield f"          {facts.num_clipped} requests cut to the model's length"
    yield f"client    {100 * report.client_cpu_share:.1f} % of one core{_delay(report)}"
    yield ""
    yield from _requests(report)
    yield ""
    yield f"{'milliseconds':<34}" + "".join(f"{name:>10}" for name in COLUMNS)
    yield _row("TTFT, time to first token", report.ttft_s)
    yield _row("TPOT, one a request", report.tpot_s)
    yield _row("ITL, gaps between tokens", report.itl_s)
    yield _row("E2E, whole answers", report.e2e_s)
    yield ""
    yield from _rates(report)
    if report.long_prompt is not None:
        yield ""
        yield from _long_prompt(report.long_prompt)


def _requests(report: ServeReport) -> Iterator[str]:
    cancelled = f", {report.num_cancelled} given up" if report.num_cancelled else ""
    yield f"requests  {report.num_ok} of {report.num_sent} answered in {report.elapsed_s:.2f} s{cancelled}"
    if report.num_json is not None:
        yield f"          {report.num_json} of {report.num_ok} answers are whole JSON"
    if (refusals := report.refusals) is not None:
        retry = refusals.retry_after_s
        after = "no Retry-After" if retry is None else f"Retry-After {retry.low:g} to {retry.high:g} s"
        latency = refusals.latency_s
        yield (
            f"refused   {refusals.count} with 429, after {_ms(latency.p50)} ms at p50, "
            f"{_ms(latency.high)} ms at most; {after}"
        )
    for fault in report.faults:
        kind = f"status {fault.status}" if fault.status else "no answer"
        yield f"failed    {fault.count} with {kind}: {fault.message}"


def _rates(report: ServeReport) -> Iterator[str]:
    yield f"output tokens/s    {report.output_tokens_per_s:>10.1f}   {report.num_output_tokens} tokens"
    yield f"prompt tokens/s    {report.prompt_tokens_per_s:>10.1f}   {report.num_prompt_tokens} tokens"
    yield f"requests/s         {report.requests_per_s:>10.2f}"
    if report.prefix_hit_rate is not None:
        share = f"{100 * report.prefix_hit_rate:.1f} %"
        yield f"prefix hit rate    {share:>10}   by {report.prefix_hit_source}"
        if report.facts.workload in UNLIKE and report.prefix_hit_rate > FEW_HITS:
            yield "                   it has seen these prompts before: for a cold run give another --seed"
    if report.slo_attainment is not None and report.goodput_per_s is not None:
        wanted = ", ".join(f"{t.of} <= {t.at_most_s * 1000:g} ms" for t in report.targets)
        share = f"{100 * report.slo_attainment:.1f} %"
        yield f"SLO attainment     {share:>10}   {wanted}"
        yield f"goodput, req/s     {report.goodput_per_s:>10.2f}"


def _long_prompt(what: LongPrompt) -> Iterator[str]:
    yield (
        f"a prompt of {what.num_prompt} tokens beside {what.num_streams} streams; its first token took "
        f"{_ms(what.ttft_long_s)} ms"
    )
    yield _row("ITL of the streams before it", what.itl_before_s)
    yield _row("ITL of the streams during it", what.itl_during_s)
    yield _row("TTFT of short ones behind it", what.ttft_short_s)


def _row(label: str, spread: Spread | None) -> str:
    if spread is None:
        return f"{label:<34}{'-':>10}"
    values = (spread.p50, spread.p90, spread.p99, spread.mean, spread.high)
    return f"{label:<34}" + "".join(f"{_ms(value):>10}" for value in values)


def _ms(value_s: float) -> str:
    value = value_s * 1000
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _delay(report: ServeReport) -> str:
    delay = report.send_delay_s
    if delay is None or delay.high < 0.001:
        return ""
    return f"; requests went out {_ms(delay.p50)} ms late at p50, {_ms(delay.high)} ms at most"

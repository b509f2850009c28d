# SPDX-License-Identifier: Apache-2.0
"""All that `headrace bench latency` finds out, as one value, and as lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.bench.host import Host
from headrace.bench.latency import Latency
from headrace.bench.spread import Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyReport:
    model: str
    host: Host
    num_threads: int
    kernels: str  # which table of native kernels ran
    prompt_tokens: int
    output_tokens: int
    repetitions: int
    latency: Latency
    overhead_share: float  # of the engine's step time, what was not the backend's computation
    launch_to_first_token_s: Spread  # of fresh processes, files in the page cache
    weight_bytes_per_token: int  # packed weights that decoding one token reads
    read_bandwidth_bytes_per_s: float  # measured here, by as many threads
    mbu: float  # weight bytes read a second while decoding / that bandwidth


def report_lines(report: LatencyReport) -> Iterator[str]:
    latency = report.latency
    yield f"model     {report.model}, kernels {report.kernels}, {report.num_threads} threads"
    yield f"machine   {report.host.cpu}, {report.host.system}"
    yield f"requests  {report.repetitions} of each kind, one at a time"
    yield ""
    yield f"{'':<34}{'p50':>10}{'low':>10}{'high':>10}"
    out = report.output_tokens
    for label, spread in (
        (f"prompt of {report.prompt_tokens}, tokens/s", latency.prompt_tokens_per_s),
        (f"decode {out} after it, tokens/s", latency.decode_tokens_per_s),
        (f"decode {out} after 1, tokens/s", latency.decode_from_one_tokens_per_s),
    ):
        yield _row(label, spread, 1)
    yield _row("time to first token, ms", latency.ttft_s, 1000)
    yield _row("between tokens, ms", latency.itl_s, 1000) + f"   p99 {latency.itl_s.p99 * 1000:.1f}"
    yield _row("launch to first token, s", report.launch_to_first_token_s, 1)
    yield ""
    yield f"weights read a token   {report.weight_bytes_per_token / 1e6:.1f} MB"
    yield f"read bandwidth         {report.read_bandwidth_bytes_per_s / 1e9:.1f} GB/s"
    yield f"MBU                    {report.mbu:.2f}   (weights small enough to stay in a cache can pass 1)"
    yield f"outside computation    {100 * report.overhead_share:.1f} % of the engine's step time"


def _row(label: str, spread: Spread, factor: float) -> str:
    digits = 3 if spread.p50 * factor < 10 else 1
    p50, low, high = (f"{value * factor:>10.{digits}f}" for value in (spread.p50, spread.low, spread.high))
    return f"{label:<34}{p50}{low}{high}"

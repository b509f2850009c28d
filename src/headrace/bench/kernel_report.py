# SPDX-License-Identifier: Apache-2.0
"""All that `headrace bench kernels` finds out, as one value, and as lines for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass

from headrace.bench.host import Host
from headrace.bench.kernel_cases import Case, Timer
from headrace.bench.spread import Spread, spread_of


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    model: str  # whose shape it is
    kernel: str
    kind: str  # the format that weights come from
    shape: str
    tokens: int
    seconds: Spread  # of one call on all threads
    num_bytes: int  # that it reads and writes
    multiply_adds: int  # 0: not counted
    from_memory: bool  # else out of a cache, and the bandwidth of memory is no roof
    of_bytes: bool  # the multiply-adds: their peak is a roof

    @property
    def bytes_per_s(self) -> float:
        return self.num_bytes / self.seconds.p50

    @property
    def ops_per_s(self) -> float:
        """A multiply-add counts as two."""
        return 2 * self.multiply_adds / self.seconds.p50


@dataclass(frozen=True, slots=True, kw_only=True)
class BytePeak:
    chain: str  # of instructions
    ops_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelReport:
    host: Host
    kernels: str
    num_threads: int
    read_bandwidth_bytes_per_s: float
    byte_peak: BytePeak | None  # None: this table has no instructions for bytes
    times: tuple[KernelTime, ...]


def time_cases(
    cases: Iterable[Case], timer: Timer, on_case: Callable[[], object] = lambda: None
) -> tuple[KernelTime, ...]:
    times = []
    for case in cases:
        called = case.run(timer)
        times.append(
            KernelTime(
                model=case.model,
                kernel=case.kernel,
                kind=case.kind,
                shape=case.shape,
                tokens=case.tokens,
                seconds=spread_of(called.seconds),
                num_bytes=called.num_bytes,
                multiply_adds=called.multiply_adds,
                from_memory=case.from_memory,
                of_bytes=case.of_bytes,
            )
        )
        on_case()
    return tuple(times)


def bandwidth_share(report: KernelReport, time: KernelTime) -> float | None:
    return time.bytes_per_s / report.read_bandwidth_bytes_per_s if time.from_memory else None


def peak_share(report: KernelReport, time: KernelTime) -> float | None:
    if report.byte_peak is None or not time.of_bytes:
        return None
    return time.ops_per_s / report.byte_peak.ops_per_s


def as_json(report: KernelReport) -> dict[str, object]:
    values = asdict(report)
    for entry, time in zip(values["times"], report.times, strict=True):
        entry |= {
            "bytes_per_s": time.bytes_per_s,
            "bandwidth_share": bandwidth_share(report, time),
            "ops_per_s": time.ops_per_s,
            "peak_share": peak_share(report, time),
        }
    return values


def report_lines(report: KernelReport) -> Iterator[str]:
    yield f"kernels   {report.kernels}, {report.num_threads} threads"
    yield f"machine   {report.host.cpu}, {report.host.system}"
    yield f"memory    {report.read_bandwidth_bytes_per_s / 1e9:.1f} GB/s read"
    if report.byte_peak is None:
        yield "int8      no peak: this table has no instructions of its own for bytes"
    else:
        yield f"int8      {report.byte_peak.ops_per_s / 1e9:.1f} GOP/s at most, by {report.byte_peak.chain}"
    yield "A multiply-add is two operations. Medians. Weights, keys and values come from memory, rows do not."
    yield ""
    shape_width = max([len(time.shape) for time in report.times] + [len("shape")]) + 1
    yield (
        f"{'model':<6}{'kernel':<11}{'kind':<7}{'shape':<{shape_width}}{'tokens':>7}{'us':>11}{'GB/s':>8}{'%':>6}"
        f"{'GOP/s':>9}{'%':>6}"
    )
    for time in report.times:
        ops = f"{time.ops_per_s / 1e9:.1f}" if time.multiply_adds else "-"
        yield (
            f"{time.model:<6}{time.kernel:<11}{time.kind:<7}{time.shape:<{shape_width}}{time.tokens:>7}"
            f"{time.seconds.p50 * 1e6:>11.1f}{time.bytes_per_s / 1e9:>8.1f}"
            f"{_percent(bandwidth_share(report, time)):>6}{ops:>9}{_percent(peak_share(report, time)):>6}"
        )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}"

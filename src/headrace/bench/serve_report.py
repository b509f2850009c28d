# SPDX-License-Identifier: Apache-2.0
"""All that `headrace bench serve` finds out, as one value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from headrace.bench.host import Host
from headrace.bench.load import Load
from headrace.bench.long_prompt import LongPrompt, long_prompt_of
from headrace.bench.request_record import TOO_MANY, RequestRecord
from headrace.bench.spread import Spread, spread_of
from headrace.bench.targets import Target, meets_all
from headrace.bench.workloads import is_json


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What was run, so that it can be run again."""

    url: str
    model: str
    workload: str
    pace: str
    seed: int
    output_tokens: int | None  # a request; None: each has its own
    prompts_by: str  # how their lengths in tokens were made
    ignores_eos: bool
    num_clipped: int  # requests of a trace cut to the model's length
    arguments: Mapping[str, object]
    host: Host


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusals:
    """Answers of 429: the server says at once that it has no room."""

    count: int
    latency_s: Spread
    retry_after_s: Spread | None  # None: no answer had it


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Requests that failed alike."""

    count: int
    status: int  # of HTTP; 0: no answer
    message: str  # of the first


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeReport:
    facts: RunFacts
    interrupted: bool  # by Ctrl-C: what there was until then
    elapsed_s: float
    client_cpu_share: float  # of one core, by this process
    send_delay_s: Spread | None  # how late requests went out; of open loops
    num_sent: int
    num_ok: int
    num_cancelled: int
    num_prompt_tokens: int  # of requests that succeeded, as num_output_tokens
    num_output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    prompt_tokens_per_s: float
    ttft_s: Spread | None  # None: there was none to measure
    tpot_s: Spread | None
    itl_s: Spread | None
    e2e_s: Spread | None
    targets: tuple[Target, ...]
    slo_attainment: float | None  # None: no targets were set
    goodput_per_s: float | None
    prefix_hit_rate: float | None
    prefix_hit_source: str | None
    num_json: int | None  # replies that are whole JSON, where that was asked for
    refusals: Refusals | None
    faults: tuple[Fault, ...]
    long_prompt: LongPrompt | None
    records: tuple[RequestRecord, ...]


def serve_report(
    facts: RunFacts,
    load: Load,
    targets: Sequence[Target],
    hit_rate: tuple[float, str] | None,
    interrupted: bool,
) -> ServeReport:
    """
    Args:
        hit_rate: the server's own, and its name; used where answers have no usage of cached tokens.
    """
    records, elapsed_s = load.records, max(load.elapsed_s, 1e-9)
    good = [record for record in records if record.is_ok]
    asked = [record for record in records if not record.cancelled]
    num_met = sum(meets_all(record, targets) for record in asked)
    num_output = sum(record.num_output for record in records if record.is_ok or record.cancelled)
    num_prompt = sum(record.num_prompt for record in good)
    hit = _hit_rate(good) or hit_rate
    return ServeReport(
        facts=facts,
        interrupted=interrupted,
        elapsed_s=load.elapsed_s,
        client_cpu_share=load.client_cpu_s / elapsed_s,
        send_delay_s=_spread(max(record.sent_s - record.due_s, 0.0) for record in records),
        num_sent=len(records),
        num_ok=len(good),
        num_cancelled=sum(record.cancelled for record in records),
        num_prompt_tokens=num_prompt,
        num_output_tokens=num_output,
        requests_per_s=len(good) / elapsed_s,
        output_tokens_per_s=num_output / elapsed_s,
        prompt_tokens_per_s=num_prompt / elapsed_s,
        ttft_s=_spread(record.ttft_s for record in good),
        tpot_s=_spread(record.tpot_s for record in good),
        itl_s=_spread(gap for record in good for gap in record.itl_s),
        e2e_s=_spread(record.e2e_s for record in good),
        targets=tuple(targets),
        slo_attainment=num_met / len(asked) if targets and asked else None,
        goodput_per_s=num_met / elapsed_s if targets else None,
        prefix_hit_rate=None if hit is None else hit[0],
        prefix_hit_source=None if hit is None else hit[1],
        num_json=sum(is_json(record.text) for record in good) if facts.workload == "schema" else None,
        refusals=_refusals(records),
        faults=_faults(records),
        long_prompt=long_prompt_of(records),
        records=records,
    )


def as_json(report: ServeReport) -> dict[str, object]:
    """For a file: without the answers' texts."""
    values = asdict(report)
    for entry, record in zip(values["records"], report.records, strict=True):
        del entry["text"]
        entry |= {"ttft_s": record.ttft_s, "tpot_s": record.tpot_s}
    return values


def _spread(values: object) -> Spread | None:
    there = [value for value in values if value is not None]  # type: ignore[attr-defined]
    return spread_of(there) if there else None


def _hit_rate(good: Sequence[RequestRecord]) -> tuple[float, str] | None:
    told = [record for record in good if record.num_cached is not None]
    num_prompt = sum(record.num_prompt for record in told)
    if not num_prompt:
        return None
    return sum(record.num_cached or 0 for record in told) / num_prompt, "usage"


def _refusals(records: Sequence[RequestRecord]) -> Refusals | None:
    refused = [record for record in records if record.status == TOO_MANY]
    if not refused:
        return None
    latency = spread_of([record.e2e_s for record in refused])
    return Refusals(
        count=len(refused), latency_s=latency, retry_after_s=_spread(r.retry_after_s for r in refused)
    )


def _faults(records: Sequence[RequestRecord]) -> tuple[Fault, ...]:
    failed = [record for record in records if record.error is not None and record.status != TOO_MANY]
    first: dict[int, str] = {}
    for record in failed:
        first.setdefault(record.status, record.error or "")
    counts = Counter(record.status for record in failed)
    return tuple(
        Fault(count=count, status=status, message=first[status]) for status, count in counts.most_common()
    )

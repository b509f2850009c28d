# SPDX-License-Identifier: Apache-2.0
"""What is worked out from requests, against numpy and by hand; and how it is shown."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from headrace.bench.host import this_host
from headrace.bench.html_page import html_page
from headrace.bench.load import Load
from headrace.bench.long_prompt import LONG, SHORT, STREAM
from headrace.bench.request_record import RequestRecord
from headrace.bench.serve_lines import report_lines
from headrace.bench.serve_report import RunFacts, ServeReport, as_json, serve_report
from headrace.bench.server_counts import PrefixCounts, hit_rate_between, parse_metrics
from headrace.bench.svg_plot import _ticks
from headrace.bench.targets import Target, parse_target
from headrace.core.errors import ConfigError

FACTS = RunFacts(
    url="http://127.0.0.1:1",
    model="<tiny>",
    workload="unique",
    pace="2 at once",
    seed=5,
    output_tokens=4,
    prompts_by="a test",
    ignores_eos=True,
    num_clipped=0,
    arguments={"seed": 5},
    host=this_host(),
)


def record(**fields: object) -> RequestRecord:
    values: dict[str, object] = {
        "name": "r",
        "group": "",
        "due_s": 0.0,
        "sent_s": 0.0,
        "e2e_s": 1.0,
        "status": 200,
        "error": None,
        "cancelled": False,
        "retry_after_s": None,
        "emissions_s": (0.4, 0.6, 0.7, 1.0),
        "num_prompt": 10,
        "num_output": 4,
        "num_cached": None,
        "finish_reason": "length",
        "text": "a b c d",
    }
    return RequestRecord(**{**values, **fields})  # type: ignore[arg-type]


def report_of(
    *records: RequestRecord, targets: tuple[Target, ...] = (), facts: RunFacts = FACTS, elapsed_s: float = 2.0
) -> ServeReport:
    load = Load(records=records, elapsed_s=elapsed_s, client_cpu_s=0.02)
    return serve_report(facts, load, targets, None, False)


REFUSED = record(status=429, error="full", emissions_s=(), e2e_s=0.01, retry_after_s=2.0, num_output=0)


def test_spreads_are_numpys() -> None:
    random = np.random.default_rng(0)
    records = []
    for _ in range(57):
        times = np.cumsum(random.exponential(0.1, 5))
        records.append(record(emissions_s=tuple(times.tolist()), e2e_s=float(times[-1]), num_output=5))
    report = report_of(*records)
    ttft = np.array([r.emissions_s[0] for r in records])
    gaps = np.concatenate([np.diff(r.emissions_s) for r in records])
    tpot = np.array([(r.emissions_s[-1] - r.emissions_s[0]) / 4 for r in records])
    for spread, values in ((report.ttft_s, ttft), (report.itl_s, gaps), (report.tpot_s, tpot)):
        assert spread is not None
        assert spread.count == len(values)
        found = (spread.p50, spread.p90, spread.p99, spread.mean, spread.low, spread.high)
        wanted = (*np.percentile(values, (50, 90, 99)), values.mean(), values.min(), values.max())
        assert found == pytest.approx(wanted)


def test_rates_count_what_was_answered() -> None:
    broken = record(error="gone", num_output=3)
    given_up = record(cancelled=True, num_output=2)
    report = report_of(record(), record(num_prompt=30), broken, given_up, REFUSED)
    assert (report.num_sent, report.num_ok, report.num_cancelled) == (5, 2, 1)
    assert report.requests_per_s == 1.0
    assert report.output_tokens_per_s == (4 + 4 + 2) / 2
    assert report.prompt_tokens_per_s == 20.0
    assert report.client_cpu_share == pytest.approx(0.01)


def test_goodput_and_attainment() -> None:
    slow = record(emissions_s=(0.9, 1.0), e2e_s=1.0)
    targets = (Target("ttft", 0.5), Target("tpot", 0.25))
    report = report_of(record(), record(), slow, REFUSED, targets=targets)
    assert report.slo_attainment == 0.5
    assert report.goodput_per_s == 1.0
    assert report_of(record()).slo_attainment is None
    tight = report_of(record(), slow, targets=(Target("itl", 0.25),))
    assert tight.slo_attainment == 0.5  # the longest gap of one is 0.3 s, of the other 0.1 s
    single = record(emissions_s=(0.1,), num_output=1)
    assert report_of(single, targets=(Target("tpot", 0.001),)).slo_attainment == 1.0  # it has no such time


def test_targets_are_read() -> None:
    assert parse_target("ttft=500") == Target("ttft", 0.5)
    for text in ("ttft", "ttft=", "ttft=-1", "ttft=nan", "tfft=5", "=5"):
        with pytest.raises(ConfigError, match="no target"):
            parse_target(text)


def test_refusals_are_no_faults() -> None:
    broken = [
        record(status=0, error="closed"),
        record(status=0, error="other"),
        record(status=500, error="x"),
    ]
    report = report_of(record(), REFUSED, replace(REFUSED, e2e_s=0.03, retry_after_s=None), *broken)
    assert report.refusals is not None
    assert report.refusals.count == 2
    assert report.refusals.latency_s.high == 0.03
    assert report.refusals.retry_after_s is not None
    assert report.refusals.retry_after_s.count == 1
    assert [(fault.count, fault.status, fault.message) for fault in report.faults] == [
        (2, 0, "closed"),
        (1, 500, "x"),
    ]


def test_hit_rate_of_usage_comes_first() -> None:
    report = report_of(record(num_cached=6), record(num_prompt=30, num_cached=4), record())
    assert report.prefix_hit_rate == 10 / 40  # of the two that say
    load = Load(records=(record(),), elapsed_s=1.0, client_cpu_s=0.0)
    told = serve_report(FACTS, load, (), (0.25, "vllm:prefix_cache_hits"), False)
    assert (told.prefix_hit_rate, told.prefix_hit_source) == (0.25, "vllm:prefix_cache_hits")


def test_metrics_are_added_up_over_labels() -> None:
    text = """\
# HELP vllm:prefix_cache_hits_total x
vllm:prefix_cache_hits_total{model_name="a b} c"} 10.0
vllm:prefix_cache_hits_total{model_name="d"} 5
plain 3 1700000000
broken
"""
    assert parse_metrics(text) == {"vllm:prefix_cache_hits_total": 15.0, "plain": 3.0}
    before, after = PrefixCounts("x", 10, 100), PrefixCounts("x", 40, 200)
    assert hit_rate_between(before, after) == 0.3
    assert hit_rate_between(before, before) is None
    assert hit_rate_between(None, after) is None


def stream(*emissions_s: float) -> RequestRecord:
    return record(group=STREAM, cancelled=True, emissions_s=emissions_s)


def test_a_long_prompt_beside_streams() -> None:
    long = record(group=LONG, sent_s=10.0, emissions_s=(5.0, 5.1), num_prompt=6000)
    short = record(group=SHORT, sent_s=11.0, emissions_s=(0.5, 0.6))
    # Gaps: 1 before; 2 reaches into the window, 3 inside, 2 reaches out of it, 1 after.
    report = report_of(stream(8.0, 9.0, 11.0, 14.0, 16.0, 17.0), long, short)
    what = report.long_prompt
    assert what is not None
    assert (what.num_streams, what.num_prompt, what.ttft_long_s) == (1, 6000, 5.0)
    assert what.itl_before_s is not None
    assert (what.itl_before_s.count, what.itl_before_s.high) == (1, 1.0)
    assert what.itl_during_s is not None
    assert (what.itl_during_s.count, what.itl_during_s.high, what.itl_during_s.p50) == (3, 3.0, 2.0)
    assert what.ttft_short_s is not None
    assert what.ttft_short_s.p50 == 0.5
    text = "\n".join(report_lines(report))
    assert "6000 tokens beside 1 streams; its first token took 5000.0 ms" in text
    assert report_of(record()).long_prompt is None


def test_lines() -> None:
    report = report_of(
        record(num_cached=5),
        REFUSED,
        record(status=500, error="broken pipe"),
        targets=(Target("ttft", 0.5),),
        facts=replace(FACTS, ignores_eos=False, num_clipped=3),
    )
    text = "\n".join(report_lines(replace(report, interrupted=True)))
    for part in (
        "interrupted",
        "seed 5",
        "1.0 % of one core",
        "1 of 3 answered",
        "1 with 429",
        "Retry-After 2 to 2 s",
        "1 with status 500: broken pipe",
        "400.0",
        "50.0 %   by usage",
        "seen these prompts before",
        "33.3 %   ttft <= 500 ms",
        "refuses ignore_eos",
        "3 requests cut",
        report.facts.host.cpu,
    ):
        assert part in text


def test_whole_json_is_counted_for_schemas() -> None:
    facts = replace(FACTS, workload="schema")
    report = report_of(record(text='{"a": 1}'), record(text='{"a": 1'), facts=facts)
    assert report.num_json == 1
    assert "1 of 2 answers are whole JSON" in "\n".join(report_lines(report))


def test_json_keeps_the_numbers_and_not_the_texts() -> None:
    values = json.loads(json.dumps(as_json(report_of(record(), REFUSED))))
    assert values["facts"]["seed"] == 5
    assert values["facts"]["arguments"] == {"seed": 5}
    assert values["ttft_s"]["p50"] == 0.4
    assert values["records"][0]["ttft_s"] == 0.4
    assert values["records"][1]["ttft_s"] is None
    assert "text" not in values["records"][0]


class Page(HTMLParser):
    """Open tags must close in order; nothing may be fetched."""

    VOID = ("meta", "line", "polyline")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        assert tag not in ("script", "link", "img", "iframe")
        assert not {name for name, _ in attrs} & {"src", "href", "xlink:href", "data", "action"}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone() -> None:
    report = report_of(
        record(), record(emissions_s=(0.5, 0.9), num_output=2), REFUSED, targets=(Target("ttft", 0.5),)
    )
    text = html_page(report)
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    assert page.counts["svg"] == 4
    assert page.counts["rect"] == 5  # two for each answered request, one for the refused
    assert "url(" not in text
    assert "@import" not in text
    assert "&lt;tiny&gt;" in text
    assert "<tiny>" not in text
    assert "prefers-color-scheme: dark" in text
    assert 'class="mark"' in text


def test_a_page_without_answers() -> None:
    assert html_page(report_of(REFUSED)).count("<svg") == 1
    assert html_page(report_of()).count("<svg") == 0


@pytest.mark.parametrize("top", [0.003, 1.0, 7.3, 950.0, 123456.0])
def test_ticks_are_round_and_few(top: float) -> None:
    ticks = _ticks(top)
    assert 3 <= len(ticks) <= 8
    assert ticks[0] == 0.0
    assert ticks[-1] <= top

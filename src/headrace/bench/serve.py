# SPDX-License-Identifier: Apache-2.0
"""Measures a server that speaks OpenAI's HTTP: makes a workload for it, sends it, sums it up."""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from headrace.bench.host import this_host
from headrace.bench.http_exchange import HttpClient
from headrace.bench.load import Load, Sender, run_load
from headrace.bench.long_prompt import LONG, SHORT, STREAM, run_long_prompt
from headrace.bench.pace import ClosedLoop, OpenLoop, Pace, arriving, poisson_arrivals
from headrace.bench.request_record import Call, Sent, record_of
from headrace.bench.serve_report import RunFacts, ServeReport, serve_report
from headrace.bench.server_counts import hit_rate_between, prefix_counts
from headrace.bench.server_probe import Server, find_server, server_ruler
from headrace.bench.targets import Target
from headrace.bench.token_ruler import CountingRuler, TokenRuler
from headrace.bench.trace import TraceRequest
from headrace.bench.trace_replay import Scale, block_tokens_of, scale_trace, trace_calls
from headrace.bench.workloads import NAMED, Draft, Workload, completion_call
from headrace.core.errors import ConfigError, HeadraceError

NUM_STREAMS, NUM_SHORT = 4, 4  # of the long-prompt workload
LONG_PROMPT, STREAM_PROMPT, SHORT_PROMPT = 6000, 64, 64  # tokens
SHORT_OUTPUT = 16
STREAM_OUTPUT = 1900  # more than is read before they are given up
TRACE_REQUESTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """What to measure. None: the workload's own."""

    url: str
    workload: str
    model: str | None = None
    api_key: str | None = None
    seed: int = 0
    num_requests: int | None = None
    output_tokens: int | None = None
    concurrency: int | None = None
    request_rate: float | None = None
    is_burst: bool = False
    duration_s: float | None = None
    is_cold: bool = False  # leave out what warms a cache
    targets: tuple[Target, ...] = ()
    slo_ttft_ms: float | None = None  # told to the server with each request
    timeout_s: float = 600.0
    trace: tuple[TraceRequest, ...] = ()
    scale: Scale = field(default_factory=Scale)
    arguments: Mapping[str, object] = field(default_factory=dict)  # for the report


@dataclass(frozen=True, slots=True)
class _Prepared:
    workload: Workload
    pace: Pace
    num_clipped: int = 0


async def measure(
    plan: ServePlan,
    count: Callable[[str], Awaitable[int]] | None,
    on_phase: Callable[[str, int | None], object] = lambda phase, total: None,
    on_done: Callable[[Sent], object] = lambda sent: None,
) -> ServeReport:
    """
    Args:
        count: counts a prompt's tokens; None: the server is asked.
        on_phase: what begins, and how many requests it has.
        on_done: a request is back.
    """
    headers = {"Authorization": f"Bearer {plan.api_key}"} if plan.api_key else {}
    if plan.slo_ttft_ms is not None:
        headers["x-slo-ttft-ms"] = f"{plan.slo_ttft_ms:g}"
    asking = HttpClient(plan.url, {k: v for k, v in headers.items() if k == "Authorization"}, plan.timeout_s)
    client = HttpClient(plan.url, headers, plan.timeout_s)
    stop = asyncio.Event()
    on_phase("preparing", None)
    server = await find_server(asking, plan.url, plan.model)
    ruler: TokenRuler
    if count is None:
        ruler = await server_ruler(asking, server.dialect)
    else:
        ruler = CountingRuler(count, "the tokenizer given")
    prepared = await _prepare(plan, server, ruler)
    await _warm(asking, prepared.workload, plan)
    before = await prefix_counts(asking)
    on_phase(plan.workload, len(prepared.workload.calls))
    with _stopped_by_ctrl_c(stop):
        load = await _run(plan, Sender(client, on_done, stop), prepared)
    after = await prefix_counts(asking)
    for each in (asking, client):
        each.close()
    rate = hit_rate_between(before, after)
    facts = RunFacts(
        url=plan.url,
        model=server.dialect.model,
        workload=plan.workload,
        pace=str(prepared.pace),
        seed=plan.seed,
        output_tokens=None if plan.trace else _output_tokens(plan),
        prompts_by=ruler.source,
        ignores_eos=server.dialect.ignore_eos,
        num_clipped=prepared.num_clipped,
        arguments=plan.arguments,
        host=this_host(),
    )
    hit = None if rate is None or after is None else (rate, after.source)
    return serve_report(facts, load, plan.targets, hit, stop.is_set())


async def _run(plan: ServePlan, sender: Sender, prepared: _Prepared) -> Load:
    calls = prepared.workload.calls
    if plan.workload == "long-prompt":
        return await run_long_prompt(sender, calls)
    return await run_load(sender, calls, prepared.pace, plan.duration_s)


async def _prepare(plan: ServePlan, server: Server, ruler: TokenRuler) -> _Prepared:
    draft = Draft(
        dialect=server.dialect,
        ruler=ruler,
        seed=plan.seed,
        num_requests=_num_requests(plan),
        output_tokens=_output_tokens(plan),
    )
    if plan.workload == "long-prompt":
        return _Prepared(await _long_prompt(draft, server), OpenLoop(f"{NUM_STREAMS} streams first"))
    if plan.workload == "trace":
        scale = plan.scale
        if scale.max_model_len is None:
            scale = Scale(time=scale.time, length=scale.length, max_model_len=server.max_model_len)
        scaled = scale_trace(plan.trace[: draft.num_requests], scale)
        block = block_tokens_of(scale)
        calls = await trace_calls(scaled.requests, block, server.dialect, ruler, plan.seed)
        workload, num_clipped = Workload(calls), scaled.num_clipped
    else:
        workload, num_clipped = await NAMED[plan.workload].make(draft), 0
    pace, calls = _paced(plan, workload.calls)
    return _Prepared(Workload(calls, workload.warming), pace, num_clipped)


def _paced(plan: ServePlan, calls: tuple[Call, ...]) -> tuple[Pace, tuple[Call, ...]]:
    if plan.is_burst:
        return OpenLoop("all at once"), tuple(arriving(calls, iter(lambda: 0.0, 1.0)))
    if plan.request_rate is not None:
        times = poisson_arrivals(plan.request_rate, plan.seed)
        return OpenLoop(f"{plan.request_rate:g} a second, Poisson"), tuple(arriving(calls, times))
    if plan.workload == "trace" and plan.concurrency is None:
        return OpenLoop(f"as recorded, times {plan.scale.time:g}"), calls
    named = NAMED.get(plan.workload)
    return ClosedLoop(plan.concurrency or (named.concurrency if named else 1)), calls


async def _long_prompt(draft: Draft, server: Server) -> Workload:
    room = server.max_model_len
    if room is not None and room < LONG_PROMPT + SHORT_OUTPUT:
        raise ConfigError(
            f"the long-prompt workload needs {LONG_PROMPT + SHORT_OUTPUT} tokens; the model takes {room}"
        )
    stream = Draft(
        dialect=draft.dialect,
        ruler=draft.ruler,
        seed=draft.seed,
        num_requests=draft.num_requests,
        output_tokens=STREAM_OUTPUT,
    )
    kinds = (
        (stream, STREAM, STREAM_PROMPT, NUM_STREAMS),
        (draft, LONG, LONG_PROMPT, 1),
        (draft, SHORT, SHORT_PROMPT, NUM_SHORT),
    )
    return Workload(
        tuple(
            [
                await completion_call(each, f"{group}-{number}", num_prompt, group)
                for each, group, num_prompt, count in kinds
                for number in range(count)
            ]
        )
    )


async def _warm(client: HttpClient, workload: Workload, plan: ServePlan) -> None:
    for call in () if plan.is_cold else workload.warming:
        reply = await client.post(call.path, call.body)
        if error := record_of(Sent(call, 0.0, reply), 0.0).error:
            raise HeadraceError(f"the request that warms the server failed: {error}")


def _num_requests(plan: ServePlan) -> int:
    if plan.num_requests is not None:
        return plan.num_requests
    if plan.request_rate is not None and plan.duration_s is not None:
        return math.ceil(plan.request_rate * plan.duration_s * 1.5) + 10  # so that time ends it, not number
    if plan.workload == "trace":
        return TRACE_REQUESTS
    return NAMED[plan.workload].num_requests if plan.workload in NAMED else 1


def _output_tokens(plan: ServePlan) -> int:
    if plan.output_tokens is not None:
        return plan.output_tokens
    return NAMED[plan.workload].output_tokens if plan.workload in NAMED else SHORT_OUTPUT


class _stopped_by_ctrl_c:
    """While inside, Ctrl-C sets the event in place of raising."""

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._is_set = False

    def __enter__(self) -> None:
        try:
            self._loop.add_signal_handler(signal.SIGINT, self._stop.set)
            self._is_set = True
        except (NotImplementedError, RuntimeError, ValueError):
            pass  # Windows, or not the main thread: Ctrl-C raises there as ever

    def __exit__(self, *_: object) -> None:
        if self._is_set:
            self._loop.remove_signal_handler(signal.SIGINT)

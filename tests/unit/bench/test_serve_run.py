# SPDX-License-Identifier: Apache-2.0
"""Whole measurements against a small server: what is asked of it, at what pace, and what comes out."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from headrace.bench.serve import ServePlan, measure
from headrace.bench.serve_report import ServeReport
from headrace.bench.trace import TraceRequest
from headrace.bench.trace_replay import Scale
from headrace.cli.bench_serve import _plan
from headrace.cli.main import build_parser, main
from headrace.core.errors import ConfigError, HeadraceError
from unit.bench.tiny_server import (
    Answer,
    Asked,
    Reaction,
    TinyServer,
    completions_server,
    event,
    json_answer,
    text_event,
    tiny_server,
    usage_event,
)


def run(react: Reaction = completions_server, **plan: object) -> tuple[ServeReport, TinyServer]:
    async def measured() -> tuple[ServeReport, TinyServer]:
        async with tiny_server(react) as server:
            values: dict[str, object] = {"workload": "unique", "num_requests": 4, "output_tokens": 3, **plan}
            report = await measure(ServePlan(url=server.url, **values), None)  # type: ignore[arg-type]
            return report, server

    return asyncio.run(measured())


def prompts(server: TinyServer, max_tokens: int = 3) -> list[str]:
    return [
        str(asked.body["prompt"])
        for asked in server.asked
        if asked.path == "/v1/completions" and asked.body["max_tokens"] == max_tokens
    ]


def test_a_closed_loop() -> None:
    report, server = run(concurrency=2)
    assert (report.num_ok, report.num_sent) == (4, 4)
    assert report.num_output_tokens == 12
    assert report.num_prompt_tokens == 4 * 270
    assert report.prefix_hit_rate == 0.5
    assert report.facts.model == "tiny"
    assert report.facts.pace == "2 at once"
    assert report.facts.prompts_by == "the server's /tokenize"
    assert report.faults == ()
    assert [len(prompt.split()) for prompt in prompts(server)] == [269] * 4  # and a BOS


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_more_at_once_than_asked_for(concurrency: int) -> None:
    now, most = 0, 0

    async def answer_slowly(asked: Asked) -> Answer:
        nonlocal now, most
        if asked.body.get("max_tokens") != 3:
            return completions_server(asked)
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        return completions_server(asked)

    run(answer_slowly, concurrency=concurrency, num_requests=7)
    assert most == concurrency


def test_the_shared_part_goes_first_and_is_not_counted() -> None:
    report, server = run(workload="shared", num_requests=2)
    (warm,) = prompts(server, max_tokens=1)
    assert len(warm.split()) == 969
    assert all(prompt.startswith(warm) for prompt in prompts(server))
    assert report.num_sent == 2
    _, cold = run(workload="shared", num_requests=2, is_cold=True)
    assert prompts(cold, max_tokens=1) == []
    assert prompts(cold) == prompts(server)


def test_a_burst_and_a_rate_wait_for_nobody() -> None:
    gate = asyncio.Event()

    def hold(asked: Asked) -> Answer:
        if asked.body.get("max_tokens") != 3:
            return completions_server(asked)
        if "w" in asked.body:
            raise AssertionError
        held.append(asked)
        if len(held) == 5:
            gate.set()
        return Answer([text_event("a"), event(b"[DONE]")], gate=gate)

    for plan in ({"is_burst": True}, {"request_rate": 500.0}):
        held: list[Asked] = []
        gate = asyncio.Event()
        report, _ = run(hold, num_requests=5, **plan)
        assert report.num_ok == 5
        assert report.send_delay_s is not None


def test_a_rate_for_a_while() -> None:
    report, _ = run(num_requests=None, request_rate=100.0, duration_s=0.3)
    assert 10 <= report.num_sent <= 60
    assert all(record.due_s < 0.31 for record in report.records)
    assert report.facts.pace == "100 a second, Poisson"


def test_a_closed_loop_ends_after_its_time() -> None:
    report, _ = run(num_requests=10_000, duration_s=0.2, concurrency=1, workload="schema")
    assert 1 <= report.num_sent < 10_000


def test_a_trace() -> None:
    requests = tuple(TraceRequest(at_s=0.01 * n, num_prompt=50 + n, num_output=2) for n in range(3))
    report, _ = run(workload="trace", trace=requests, num_requests=None, scale=Scale(max_model_len=53))
    assert [record.num_prompt for record in report.records] == [50, 51, 51]
    assert report.facts.num_clipped == 1
    assert report.facts.pace == "as recorded, times 1"
    first, second, third = (record.due_s for record in report.records)
    assert (second - first, third - first) == pytest.approx((0.01, 0.02))  # as planned, not as sent


def test_a_long_prompt_among_streams() -> None:
    import headrace.bench.long_prompt as long_prompt

    calm = long_prompt.CALM_S
    long_prompt.CALM_S = 0.05
    try:

        def stream_on(asked: Asked) -> Answer:
            if asked.body.get("max_tokens") != 1900:
                return completions_server(asked)
            return Answer([text_event("w")] * 1900)

        async def measured() -> ServeReport:
            def large(asked: Asked) -> Answer:
                if asked.path == "/v1/models":
                    return json_answer({"data": [{"id": "tiny", "max_model_len": 8192}]})
                return stream_on(asked)

            async with tiny_server(large) as server:
                return await measure(ServePlan(url=server.url, workload="long-prompt"), None)

        report = asyncio.run(measured())
    finally:
        long_prompt.CALM_S = calm
    assert report.long_prompt is not None
    assert (report.long_prompt.num_streams, report.long_prompt.num_prompt) == (4, 6000)
    assert report.long_prompt.itl_before_s is not None
    assert report.num_cancelled == 4
    assert report.num_ok == 5
    with pytest.raises(ConfigError, match="needs 6016 tokens; the model takes 4096"):
        run(workload="long-prompt")


def test_refusals_and_keys_and_targets_are_sent_along() -> None:
    def refuse(asked: Asked) -> Answer:
        if asked.body.get("max_tokens") == 3:
            assert asked.headers["x-slo-ttft-ms"] == "250"
            return json_answer({"error": {"message": "full"}}, 429, "Retry-After: 1")
        assert "x-slo-ttft-ms" not in asked.headers
        return completions_server(asked)

    report, server = run(refuse, slo_ttft_ms=250.0, api_key="secret")
    assert report.refusals is not None
    assert report.refusals.count == 4
    assert report.faults == ()
    assert all(asked.headers["authorization"] == "Bearer secret" for asked in server.asked)
    assert "secret" not in json.dumps(report.facts.arguments)


def test_fields_that_are_refused_are_left_out() -> None:
    def strict(asked: Asked) -> Answer:
        for name in ("ignore_eos", "stream_options"):
            if name in asked.body:
                return json_answer({"error": {"message": f"unknown field {name}"}}, 400)
        return completions_server(asked)

    report, _ = run(strict)
    assert report.num_ok == 4
    assert not report.facts.ignores_eos


def test_tokens_are_counted_as_llama_server_does() -> None:
    def llama(asked: Asked) -> Answer:
        if asked.path == "/tokenize":
            return json_answer({"tokens": [0] * len(str(asked.body.get("content", "")).split())})
        return completions_server(asked)

    _, server = run(llama)
    assert [len(prompt.split()) for prompt in prompts(server)] == [270] * 4


def test_tokens_are_counted_by_usage() -> None:
    def plain(asked: Asked) -> Answer:
        if asked.path == "/tokenize":
            return json_answer({"detail": "Not Found"}, 404)
        if asked.path == "/v1/completions" and "stream" not in asked.body:
            return json_answer({"usage": {"prompt_tokens": 2 * len(str(asked.body["prompt"]).split()) + 4}})
        return completions_server(asked)

    report, server = run(plain)
    assert report.facts.prompts_by == "the server's usage, on average"
    assert [len(prompt.split()) for prompt in prompts(server)] == [133] * 4


@pytest.mark.parametrize(
    ("path", "answer", "message"),
    [
        (
            "/v1/completions",
            json_answer({"error": {"message": "bad key"}}, 401),
            "refuses a short prompt with 401: bad key",
        ),
        ("/v1/models", json_answer({"data": []}), "names no model"),
    ],
)
def test_a_server_that_is_none(path: str, answer: Answer, message: str) -> None:
    with pytest.raises(HeadraceError, match=message):
        run(lambda asked: answer if asked.path == path else completions_server(asked))


def test_no_server_at_all() -> None:
    with pytest.raises(HeadraceError, match="is the server up"):
        asyncio.run(measure(ServePlan(url="http://127.0.0.1:9", workload="idle"), None))


def test_ctrl_c_keeps_what_there_is() -> None:
    gate = asyncio.Event()
    num = 0

    def stuck(asked: Asked) -> Answer:
        nonlocal num
        if asked.body.get("max_tokens") != 3:
            return completions_server(asked)
        num += 1
        if num < 3:
            return completions_server(asked)
        os.kill(os.getpid(), signal.SIGINT)
        return Answer([text_event("a"), usage_event(1, 1)], gate=gate)

    report, _ = run(stuck, concurrency=1)
    assert report.interrupted
    assert (report.num_ok, report.num_cancelled, report.num_sent) == (2, 1, 3)


def parsed(*words: str) -> ServePlan:
    line = ["bench", "serve", "http://x", *words]
    return _plan(build_parser(line).parse_args(line))


def test_the_command_line() -> None:
    plan = parsed("--request-rate", "2.5", "--slo", "ttft=500", "--slo", "itl=50", "--duration", "3")
    assert (plan.request_rate, plan.duration_s, len(plan.targets)) == (2.5, 3.0, 2)
    assert "api_key" not in parsed("--api-key", "k").arguments
    for words in (
        ("--workload", "trace"),
        ("--trace", "x"),
        ("--duration", "3"),
        ("--workload", "long-prompt", "--burst"),
        ("--slo", "fast"),
    ):
        with pytest.raises(ConfigError):
            parsed(*words)


@pytest.mark.parametrize(
    "words",
    [
        ["--concurrency", "0"],
        ["--request-rate", "-1"],
        ["--burst", "--concurrency", "2"],
        ["--workload", "x"],
    ],
)
def test_bad_options(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(*words)
    assert words[0] in capsys.readouterr().err


def test_the_command_writes_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import threading

    ready, done = threading.Event(), threading.Event()
    urls: list[str] = []

    async def serve() -> None:
        async with tiny_server(completions_server) as server:
            urls.append(server.url)
            ready.set()
            while not done.is_set():
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait()
    try:
        files = [str(tmp_path / name) for name in ("r.json", "r.html")]
        words = ["bench", "serve", urls[0], "--num-requests", "2", "--json", files[0], "--html", files[1]]
        assert main(words) == 0
    finally:
        done.set()
        thread.join()
    assert "2 of 2 answered" in capsys.readouterr().out
    values = json.loads(Path(files[0]).read_text())
    assert values["num_ok"] == 2
    assert values["facts"]["arguments"]["num_requests"] == 2
    assert "<svg" in Path(files[1]).read_text()

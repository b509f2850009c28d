# SPDX-License-Identifier: Apache-2.0
"""The measuring client against a server that answers slowly, in odd pieces, wrongly or not at all; and what
is read from such replies."""

from __future__ import annotations

import asyncio
import socket

import pytest

from headrace.bench.http_exchange import HttpClient, Reply
from headrace.bench.request_record import Call, RequestRecord, Sent, record_of
from headrace.bench.sse import events_of
from headrace.core.errors import ConfigError
from unit.bench.tiny_server import (
    Answer,
    Asked,
    TinyServer,
    event,
    json_answer,
    text_event,
    tiny_server,
    usage_event,
)

CALL = Call("c-0", "/v1/completions", b'{"prompt": "x"}', num_prompt=7)
DONE = event(b"[DONE]")


def exchange(answer: Answer, times: int = 1, timeout_s: float = 10.0) -> tuple[list[Reply], TinyServer]:
    async def run() -> tuple[list[Reply], TinyServer]:
        async with tiny_server(lambda asked: answer) as server:
            client = HttpClient(server.url + "/v1", {"X-Mine": "yes"}, timeout_s)
            replies = [await client.post(CALL.path, CALL.body) for _ in range(times)]
            client.close()
            return replies, server

    return asyncio.run(run())


def read(answer: Answer, timeout_s: float = 10.0) -> RequestRecord:
    (reply,), _ = exchange(answer, timeout_s=timeout_s)
    return record_of(Sent(CALL, reply.sent_s, reply), reply.sent_s)


def test_a_stream_is_read_with_the_time_of_each_text() -> None:
    pieces = [
        text_event("a"),
        text_event(""),
        text_event("b"),
        text_event("c", "length"),
        usage_event(9, 3, 4),
    ]
    record = read(Answer([*pieces, DONE]))
    assert record.is_ok
    assert record.text == "abc"
    assert len(record.emissions_s) == 3
    assert 0 < record.emissions_s[0] < record.emissions_s[1] < record.emissions_s[2] <= record.e2e_s
    assert (record.num_prompt, record.num_output, record.num_cached) == (9, 3, 4)
    assert record.finish_reason == "length"
    assert record.ttft_s == record.emissions_s[0]
    assert record.tpot_s == pytest.approx((record.e2e_s - record.emissions_s[0]) / 2)
    assert record.itl_s == pytest.approx(
        (record.emissions_s[1] - record.emissions_s[0], record.emissions_s[2] - record.emissions_s[1])
    )


def test_events_split_anywhere_are_whole_again() -> None:
    whole = b"".join([text_event("hello"), text_event("wörld"), usage_event(1, 2), DONE])
    for size in (1, 2, 3, 7, 50):
        pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
        found = list(events_of(enumerate(map(bytes, pieces))))
        assert len(found) == 4
        for at, data in found:  # completed by the piece that brought the last byte of the blank line
            upto = whole.index(data) + len(data) + 2
            assert at == (upto - 1) // size
    record = read(Answer([whole[:20], whole[20:31], whole[31:]]))
    assert record.text == "hellowörld"


def test_two_texts_in_one_piece_come_together() -> None:
    record = read(Answer([text_event("a"), text_event("b") + text_event("c"), DONE]))
    assert record.itl_s[1] == 0.0
    assert record.num_output == 3  # without usage


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_ends_of_lines(end: str) -> None:
    text = end.join([": a comment", "", "event: x", "data: 1", "data:2", "", "id: 5", "", "data: 3", ""])
    assert list(events_of([(0.0, text[:9].encode()), (1.0, text[9:].encode())])) == [(1.0, b"1\n2")]


def test_an_error_in_the_stream() -> None:
    record = read(Answer([text_event("a"), event({"error": {"message": "out of luck", "code": 500}})]))
    assert not record.is_ok
    assert record.error == "out of luck"
    assert record.emissions_s  # what came before it is kept


def test_a_connection_that_breaks_in_the_middle() -> None:
    record = read(Answer([text_event("a"), text_event("b")], breaks=True))
    assert not record.is_ok
    assert "closed before" in str(record.error)
    assert record.text == "ab"


def test_an_event_that_is_no_json() -> None:
    assert "no JSON object" in str(read(Answer([event(b"{oops"), DONE])).error)


def test_an_answer_without_text_is_a_failure() -> None:
    assert read(Answer([usage_event(3, 0), DONE])).error == "the answer has no text"


def test_too_many() -> None:
    record = read(json_answer({"error": {"message": "full"}}, 429, "Retry-After: 3"))
    assert (record.status, record.error, record.retry_after_s) == (429, "full", 3.0)
    assert record.ttft_s is None
    assert record.tpot_s is None


@pytest.mark.parametrize(
    ("body", "message"),
    [(b'{"error": "short"}', "short"), (b"plain words", "plain words"), (b"[1]", "[1]"), (b"", "status 500")],
)
def test_errors_of_other_forms(body: bytes, message: str) -> None:
    assert read(Answer([body] if body else [], 500)).error == message


def test_connections_are_used_again() -> None:
    replies, server = exchange(Answer([text_event("a"), DONE]), times=3)
    assert [reply.status for reply in replies] == [200, 200, 200]
    assert server.num_connections == 1
    assert server.asked[0].path == "/v1/completions"
    assert server.asked[0].headers["x-mine"] == "yes"


def test_a_connection_closed_while_idle_is_replaced() -> None:
    replies, server = exchange(Answer([text_event("a"), DONE], headers=("Connection: close",)), times=2)
    assert [reply.error for reply in replies] == [None, None]
    assert server.num_connections == 2


def test_no_server() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    reply = asyncio.run(HttpClient(url, {}, 5.0).get("/v1/models"))
    assert reply.status == 0
    assert "cannot connect" in str(reply.error)


def test_a_server_that_is_silent_for_too_long() -> None:
    async def run() -> Reply:
        gate = asyncio.Event()
        async with tiny_server(lambda asked: Answer([text_event("a"), DONE], gate=gate)) as server:
            reply = await HttpClient(server.url, {}, 0.6).post("/x", b"")
            gate.set()
            return reply

    reply = asyncio.run(run())
    assert reply.error == "no end within 0.6 s"
    assert reply.status == 200


def test_what_is_no_http() -> None:
    async def run() -> Reply:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"SSH-2.0-OpenSSH\r\n")
            await writer.drain()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reply = await HttpClient(f"http://127.0.0.1:{port}", {}, 5.0).get("/")
        server.close()
        return reply

    assert "no HTTP" in str(asyncio.run(run()).error)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", ""])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ConfigError, match="no server's URL"):
        HttpClient(url, {}, 1.0)


def test_chat_deltas_and_llama_servers_timings() -> None:
    role = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    delta = event({"choices": [{"index": 0, "delta": {"content": "hi"}}]})
    last = event({"choices": [{"delta": {}, "finish_reason": "stop"}], "timings": {"cache_n": 5}})
    record = read(Answer([role, delta, last, DONE]))
    assert (record.text, len(record.emissions_s), record.num_cached) == ("hi", 1, 5)
    assert record.finish_reason == "stop"


def test_asked_is_what_was_sent() -> None:
    _, server = exchange(json_answer({}))
    assert server.asked == [
        Asked("POST", "/v1/completions", server.asked[0].headers, {"prompt": "x"}),
    ]

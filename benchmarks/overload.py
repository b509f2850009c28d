# SPDX-License-Identifier: Apache-2.0
"""A server offered many times what it can do: what those who are let in wait, how quickly the others are
refused and whether what they are told is true, whether /health keeps answering and memory stays flat. Starts
`headrace serve` itself."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from own_server import MIB, OwnServer

from headrace.bench.http_exchange import HttpClient, Reply
from headrace.bench.spread import spread_of

EXAMPLES = """\
examples:
  python benchmarks/overload.py smollm2
  python benchmarks/overload.py smollm2 --factor 10 --duration 60 --slo-ttft-ms 1000 --json overload.json
"""
KV_BYTES = 256 * MIB  # soon all in use, so that what else grows shows
NUM_AT_ONCE = 16  # as many as run
PATH = "/v1/completions"
HEALTH_EVERY_S = 0.05
RETRY_EVERY_S = 0.025
WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school")


@dataclass
class Seen:
    """Of one load."""

    replies: list[Reply] = field(default_factory=list)
    health: list[Reply] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)  # how much later than planned the client sent
    held_mib: list[float] = field(default_factory=list)  # each second
    seconds: float = 0.0
    client_cpu_s: float = 0.0
    server_cpu_s: float = 0.0


def body_of(draw: random.Random, num_output: int, slo_ttft_ms: float | None) -> bytes:
    """A prompt of about 60 tokens."""
    fields = {
        "prompt": " ".join(draw.choice(WORDS) for _ in range(60)),
        "max_tokens": num_output,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "slo_ttft_ms": slo_ttft_ms,
    }
    return json.dumps(fields).encode()


async def sustainable_rate(client: HttpClient, num_requests: int, num_output: int) -> float:
    """Requests a second with as many at once as run."""
    draw = random.Random(1)
    bodies = [body_of(draw, num_output, None) for _ in range(num_requests)]

    async def ask_on() -> None:
        while bodies:
            await client.post(PATH, bodies.pop())

    begin_s = time.perf_counter()
    await asyncio.gather(*(ask_on() for _ in range(NUM_AT_ONCE)))
    return num_requests / (time.perf_counter() - begin_s)


async def offer(server: OwnServer, rate: float, duration_s: float, args: argparse.Namespace) -> Seen:
    """Requests come at random moments, whether or not earlier ones are answered."""
    draw, seen, client = random.Random(2), Seen(), server.client()
    due, due_s = [], draw.expovariate(rate)
    while due_s < duration_s:
        due.append((due_s, body_of(draw, args.output_tokens, args.slo_ttft_ms)))
        due_s += draw.expovariate(rate)
    watching = [asyncio.create_task(watch(server, seen)) for watch in (watch_health, watch_memory)]
    begin_s, cpu_s, server_cpu_s = time.perf_counter(), time.process_time(), server.cpu_s()
    tasks = []
    for due_s, body in due:
        await asyncio.sleep(max(begin_s + due_s - time.perf_counter(), 0))
        seen.late_s.append(time.perf_counter() - begin_s - due_s)
        tasks.append(asyncio.create_task(client.post(PATH, body)))
    seen.replies = list(await asyncio.gather(*tasks))
    seen.seconds = time.perf_counter() - begin_s
    seen.client_cpu_s = time.process_time() - cpu_s
    seen.server_cpu_s = server.cpu_s() - server_cpu_s
    for task in watching:
        task.cancel()
    client.close()
    return seen


async def watch_health(server: OwnServer, seen: Seen) -> None:
    client = server.client()
    while True:
        seen.health.append(await client.get("/health"))
        await asyncio.sleep(HEALTH_EVERY_S)


async def watch_memory(server: OwnServer, seen: Seen) -> None:
    while True:
        seen.held_mib.append(server.held_mib())
        await asyncio.sleep(1)


async def times_told(client: HttpClient, args: argparse.Namespace) -> list[tuple[float, float]]:
    """The server is filled, one more asked, and asked again and again: after how many seconds it was told to
    come back, and after how many it would have been let in."""
    draw = random.Random(3)
    found = []
    for _ in range(args.retries):
        bodies = [body_of(draw, args.output_tokens, None) for _ in range(NUM_AT_ONCE + args.queue)]
        filling = [asyncio.create_task(client.post(PATH, body)) for body in bodies]
        await asyncio.sleep(draw.uniform(0.2, 1.0))
        reply = await client.post(PATH, body_of(draw, 1, None))
        if reply.status == 429:
            begin_s = reply.end_s
            told_s = json.loads(reply.body)["error"]["retry_after_ms"] / 1000
            while reply.status == 429:
                await asyncio.sleep(RETRY_EVERY_S)
                reply = await client.post(PATH, body_of(draw, 1, None))
            found.append((told_s, reply.sent_s - begin_s))
        await asyncio.gather(*filling)
    return found


def summary(name: str, seen: Seen) -> dict[str, object]:
    served = [reply for reply in seen.replies if reply.status == 200 and reply.error is None]
    refused = [reply for reply in seen.replies if reply.status == 429]
    failed = [reply for reply in seen.replies if reply not in served and reply not in refused]
    cut = [reply for reply in served if not reply.body.endswith(b"data: [DONE]\n\n")]
    return {
        "load": name,
        "offered": len(seen.replies),
        "served": len(served),
        "refused": len(refused),
        "failed": Counter(f"{reply.status} {reply.error or ''}" for reply in failed),
        "cut_streams": len(cut),
        "served_per_s": round(len(served) / seen.seconds, 2),
        "ttft_ms": spread([reply.pieces[0][0] - reply.sent_s for reply in served]),
        "e2e_ms": spread([reply.end_s - reply.sent_s for reply in served]),
        "refused_ms": spread([reply.end_s - reply.sent_s for reply in refused]),
        "refused_because": Counter(json.loads(reply.body)["error"]["code"] for reply in refused),
        "retry_after_s": Counter(reply.headers.get("retry-after") for reply in refused),
        "health_ms": spread([reply.end_s - reply.sent_s for reply in seen.health]),
        "health_not_200": sum(reply.status != 200 for reply in seen.health),
        "client_late_ms": spread(seen.late_s),
        "client_cpu_share": round(seen.client_cpu_s / seen.seconds, 3),
        "server_cpu_share": round(seen.server_cpu_s / seen.seconds, 2),
        "held_mib": {
            "begin": round(seen.held_mib[0], 1),
            "half": round(seen.held_mib[len(seen.held_mib) // 2], 1),
            "end": round(seen.held_mib[-1], 1),
            "max": round(max(seen.held_mib), 1),
        },
    }


def spread(seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {}
    found = spread_of([1000 * value for value in seconds])
    return {"p50": round(found.p50, 1), "p99": round(found.p99, 1), "max": round(found.high, 1)}


async def measure(server: OwnServer, args: argparse.Namespace) -> list[dict[str, object]]:
    results: list[dict[str, object]] = []

    def add(result: dict[str, object]) -> None:
        results.append(result)
        print(json.dumps(result), flush=True)

    client = server.client()
    rate = await sustainable_rate(client, args.warm_up, args.output_tokens)
    add({"load": "sustainable", "requests_per_s": round(rate, 2)})
    add(summary("half of it", await offer(server, rate / 2, args.duration / 3, args)))
    add(summary(f"{args.factor:g} times", await offer(server, rate * args.factor, args.duration, args)))
    told = await times_told(client, args)
    add(
        {
            "load": "a full queue, asked again and again",
            "told_s": [round(told_s, 2) for told_s, _ in told],
            "let_in_s": [round(true_s, 2) for _, true_s in told],
            "retry_after_enough": sum(max(math.ceil(told_s), 1) >= true_s for told_s, true_s in told),
        }
    )
    client.close()
    return results


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a name of the catalogue, or a file")
    parser.add_argument("--factor", type=float, default=10.0, help="of what is sustainable (default: 10)")
    parser.add_argument("--duration", type=float, default=60.0, metavar="S", help="default: 60")
    parser.add_argument("--output-tokens", type=int, default=32, metavar="N", help="default: 32")
    parser.add_argument("--warm-up", type=int, default=96, metavar="N", help="requests (default: 96)")
    parser.add_argument("--queue", type=int, default=16, metavar="N", help="places that wait (default: 16)")
    parser.add_argument("--slo-ttft-ms", type=float, metavar="MS", help="target of every request")
    parser.add_argument("--retries", type=int, default=12, metavar="N", help="tried (default: 12)")
    parser.add_argument("--json", metavar="FILE", help="also write the results there")
    args = parser.parse_args()
    options = ["--max-num-seqs", str(NUM_AT_ONCE), "--max-num-queued-reqs", str(args.queue)]
    with OwnServer(args.model, [*options, "--kv-cache-memory-bytes", str(KV_BYTES)]) as server:
        results = asyncio.run(measure(server, args))
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

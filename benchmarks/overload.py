# SPDX-License-Identifier: Apache-2.0
"""A server offered many times what it can do: what those who are let in wait, how quickly the others are
refused, whether /health keeps answering and memory stays flat. Starts `headrace serve` itself."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

EXAMPLES = """\
examples:
  python benchmarks/overload.py smollm2
  python benchmarks/overload.py smollm2 --factor 10 --duration 60 --slo-ttft-ms 2000 --json overload.json
"""
KV_BYTES = 256 * 2**20  # soon all in use, so that what else grows shows
WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school")


@dataclass
class Load:
    """What was seen of one load. Times in seconds."""

    ttft_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    retry_after_s: list[int] = field(default_factory=list)
    num_failed: int = 0


class Server:
    def __init__(self, model: str, options: list[str]) -> None:
        command = [sys.executable, "-m", "headrace", "serve", model, "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = re.search(r"http://([\d.]+):(\d+)/", self.process.stdout.readline())
        if found is None:
            raise SystemExit("the server did not start")
        self.host, self.port = found[1], int(found[2])

    def resident_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", status)
        return int(found[1]) / 1024 if found else 0.0

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def body_of(draw: random.Random, num_output: int) -> bytes:
    text = " ".join(draw.choice(WORDS) for _ in range(60))
    fields = {"prompt": text, "max_tokens": num_output, "ignore_eos": True, "temperature": 0, "stream": True}
    return json.dumps(fields).encode()


async def ask(server: Server, body: bytes, slo_ttft_ms: int | None, load: Load) -> None:
    begin_s = time.monotonic()
    try:
        reader, writer = await asyncio.open_connection(server.host, server.port)
    except OSError:
        load.num_failed += 1
        return
    try:
        slo = f"x-slo-ttft-ms: {slo_ttft_ms}\r\n" if slo_ttft_ms else ""
        writer.write(
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{slo}"
            f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if status == 429:
            load.refused_s.append(time.monotonic() - begin_s)
            found = re.search(rb"(?i)retry-after: (\d+)", head)
            load.retry_after_s.append(int(found[1]) if found else -1)
        elif status != 200:
            load.num_failed += 1
        else:
            await reader.readuntil(b"data: ")
            load.ttft_s.append(time.monotonic() - begin_s)
            rest = await reader.read(-1)
            load.e2e_s.append(time.monotonic() - begin_s)
            load.num_failed += b"[DONE]" not in rest
    except (OSError, asyncio.IncompleteReadError):
        load.num_failed += 1
    finally:
        writer.close()


async def closed_loop(server: Server, concurrency: int, num_requests: int, num_output: int) -> float:
    """Requests a second at full concurrency."""
    draw, load = random.Random(1), Load()
    bodies = [body_of(draw, num_output) for _ in range(num_requests)]

    async def client() -> None:
        while bodies:
            await ask(server, bodies.pop(), None, load)

    begin_s = time.monotonic()
    await asyncio.gather(*(client() for _ in range(concurrency)))
    return num_requests / (time.monotonic() - begin_s)


async def open_loop(
    server: Server, rate: float, duration_s: float, num_output: int, slo_ttft_ms: int | None
) -> tuple[Load, list[float], list[float]]:
    """The load, latencies of /health, MiB of the server."""
    draw, load = random.Random(2), Load()
    health_s: list[float] = []
    resident: list[float] = []
    tasks = []
    polling = asyncio.create_task(poll(server, health_s, resident))
    begin_s = due_s = time.monotonic()
    while due_s - begin_s < duration_s:
        due_s += draw.expovariate(rate)
        await asyncio.sleep(max(due_s - time.monotonic(), 0))
        tasks.append(asyncio.create_task(ask(server, body_of(draw, num_output), slo_ttft_ms, load)))
    await asyncio.gather(*tasks)
    polling.cancel()
    return load, health_s, resident


async def poll(server: Server, health_s: list[float], resident: list[float]) -> None:
    while True:
        begin_s = time.monotonic()
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = await reader.read(-1)
        writer.close()
        health_s.append(time.monotonic() - begin_s if b" 200 " in answer[:20] else float("inf"))
        resident.append(server.resident_mib())
        await asyncio.sleep(0.05)


def spread(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    milliseconds = np.array(values) * 1000
    found = {f"p{q}": float(np.percentile(milliseconds, q)) for q in (50, 99)}
    return {**found, "max": float(milliseconds.max())}


def summary(name: str, load: Load, health_s: list[float], resident: list[float]) -> dict[str, object]:
    return {
        "load": name,
        "served": len(load.e2e_s),
        "refused": len(load.refused_s),
        "failed": load.num_failed,
        "ttft_ms": spread(load.ttft_s),
        "e2e_ms": spread(load.e2e_s),
        "refused_ms": spread(load.refused_s),
        "retry_after_s": sorted(set(load.retry_after_s)),
        "health_ms": spread(health_s),
        "resident_mib": [round(value) for value in (resident[0], resident[len(resident) // 2], resident[-1])],
    }


async def measure(server: Server, args: argparse.Namespace) -> list[dict[str, object]]:
    sustainable = await closed_loop(server, 16, args.warm_up, args.output_tokens)
    print(f"sustainable: {sustainable:.2f} requests a second", file=sys.stderr)
    results = []
    for name, factor, duration_s in (
        ("half of it", 0.5, args.duration / 3),
        (f"{args.factor:g} times", args.factor, args.duration),
    ):
        seen = await open_loop(server, sustainable * factor, duration_s, args.output_tokens, args.slo_ttft_ms)
        results.append(summary(name, *seen))
        print(json.dumps(results[-1]), flush=True)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a name of the catalogue, or a file")
    parser.add_argument("--factor", type=float, default=10.0, help="of what is sustainable (default: 10)")
    parser.add_argument("--duration", type=float, default=60.0, metavar="S", help="default: 60")
    parser.add_argument("--output-tokens", type=int, default=32, metavar="N", help="default: 32")
    parser.add_argument("--warm-up", type=int, default=64, metavar="N", help="requests (default: 64)")
    parser.add_argument("--queue", type=int, default=16, metavar="N", help="places that wait (default: 16)")
    parser.add_argument("--slo-ttft-ms", type=int, metavar="MS", help="target of every request")
    parser.add_argument("--json", metavar="FILE", help="also write the results there")
    args = parser.parse_args()
    server = Server(
        args.model,
        [
            "--max-num-queued-reqs",
            str(args.queue),
            "--kv-cache-memory-bytes",
            str(KV_BYTES),
        ],
    )
    try:
        results = asyncio.run(measure(server, args))
    finally:
        server.end()
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""What a server holds in memory beside its weights and its K/V, over two thousand requests of all kinds, and
how much of the K/V in use paging wastes. Starts `headrace serve` itself."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections import Counter
from dataclasses import dataclass

from own_server import MIB, OwnServer, metrics

from headrace.bench.http_exchange import HttpClient
from headrace.weights import catalogue

EXAMPLES = """\
examples:
  python benchmarks/memory.py smollm2
  python benchmarks/memory.py smollm2 --kv-cache-memory-bytes 134217728 --num-requests 500
"""
NUM_AT_ONCE = 16
MAX_PROMPT = 1500
MAX_MODEL_LEN = 2048
LOOK_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class Sample:
    num_begun: int  # requests
    held_mib: float
    num_rows: float
    kv_usage: float  # share of all blocks
    paging_waste: float  # share of the places in those


def body_of(draw: random.Random) -> bytes:
    """Prompts of 1 to 1,500 tokens, short ones as likely as long ones; half begin like others do."""
    length = int(MAX_PROMPT ** draw.random())
    ids = [draw.randrange(1000, 40_000) for _ in range(length)]
    if draw.random() < 0.5:
        beginning = random.Random(draw.randrange(3))
        ids = ([beginning.randrange(1000, 40_000) for _ in range(400)] + ids)[:MAX_PROMPT]
    fields: dict[str, object] = {
        "prompt": ids,
        "max_tokens": draw.randint(1, 32),
        "ignore_eos": True,
        "temperature": draw.choice([0, 0.8]),
        "n": draw.randint(1, 3),
        "stream": draw.random() < 0.5,
        "logprobs": draw.choice([None, None, None, 5]),
    }
    return json.dumps(fields).encode()


async def ask(client: HttpClient, body: bytes, patience_s: float | None) -> str:
    """How it ended; after `patience_s` the client leaves."""
    try:
        reply = await asyncio.wait_for(client.post("/v1/completions", body), patience_s)
    except TimeoutError:
        return "given up"
    return f"{reply.status}" if reply.error is None else f"{reply.status}: {reply.error}"


async def run(server: OwnServer, num_requests: int) -> tuple[list[Sample], Counter[str]]:
    draw, client = random.Random(1), server.client()
    samples: list[Sample] = []
    ends = Counter[str]()
    num_left = num_requests

    async def look() -> None:
        while True:
            page = await metrics(client)
            samples.append(
                Sample(
                    num_begun=num_requests - num_left,
                    held_mib=server.held_mib(),
                    num_rows=page["running_answers"],
                    kv_usage=page["kv_usage_ratio"],
                    paging_waste=page["kv_paging_waste_ratio"],
                )
            )
            await asyncio.sleep(LOOK_EVERY_S)

    async def ask_on() -> None:
        nonlocal num_left
        while num_left:
            num_left -= 1
            patience_s = draw.uniform(0, 3) if draw.random() < 0.1 else None
            ends[await ask(client, body_of(draw), patience_s)] += 1

    looking = asyncio.create_task(look())
    await asyncio.gather(*(ask_on() for _ in range(NUM_AT_ONCE)))
    await asyncio.sleep(2 * LOOK_EVERY_S)
    looking.cancel()
    client.close()
    return samples, ends


def report(samples: list[Sample], ends: Counter[str], weights_mib: float, kv_mib: float) -> None:
    num_requests = samples[-1].num_begun
    print(f"{num_requests} requests: {', '.join(f'{end} {count}' for end, count in ends.items())}")
    print(f"before the first            {samples[0].held_mib:7.1f} MiB, K/V not written yet")
    quarters = [
        max(sample.held_mib for sample in samples if sample.num_begun <= num_requests * share / 4)
        for share in (1, 2, 3, 4)
    ]
    for share, held_mib in enumerate(quarters, start=1):
        print(f"at most, until {share}/4 of them {held_mib:8.1f} MiB")
    print(f"K/V as asked                {kv_mib:7.1f} MiB")
    print(f"weights in their file       {weights_mib:7.1f} MiB")
    print(f"the rest, before            {samples[0].held_mib - weights_mib:7.1f} MiB")
    print(f"the rest, at most           {quarters[3] - weights_mib - kv_mib:7.1f} MiB")
    full = [sample for sample in samples if sample.num_rows >= NUM_AT_ONCE]
    used = sum(sample.kv_usage for sample in full)
    if used:
        wasted = sum(sample.kv_usage * sample.paging_waste for sample in full) / used
        print(f"wasted by paging            {100 * wasted:7.2f} % of K/V in use at {NUM_AT_ONCE} rows")
        print(
            f"  looked at                 {len(full):7} times, {100 * used / len(full):.0f} % of K/V in use"
        )
    print(f"blocks in use at the end    {100 * samples[-1].kv_usage:7.2f} %")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a name of the catalogue, or a GGUF file")
    parser.add_argument("--num-requests", type=int, default=2000, metavar="N", help="default: 2000")
    parser.add_argument("--kv-cache-memory-bytes", type=int, default=256 * MIB, metavar="N")
    args = parser.parse_args()
    weights_mib = catalogue.resolve(args.model).stat().st_size / MIB
    options = ["--kv-cache-memory-bytes", str(args.kv_cache_memory_bytes)]
    with OwnServer(args.model, [*options, "--max-model-len", str(MAX_MODEL_LEN)]) as server:
        samples, ends = asyncio.run(run(server, args.num_requests))
    report(samples, ends, weights_mib, args.kv_cache_memory_bytes / MIB)
    return 0


if __name__ == "__main__":
    sys.exit(main())

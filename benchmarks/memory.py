# SPDX-License-Identifier: Apache-2.0
"""What a server holds in memory beside its weights and its K/V, over two thousand requests of all kinds, and
how much of the K/V in use paging wastes. Starts `headrace serve` itself."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys

from overload import Server

EXAMPLES = """\
examples:
  python benchmarks/memory.py smollm2
  python benchmarks/memory.py smollm2 --kv-cache-memory-bytes 134217728 --num-requests 500
"""


def body_of(draw: random.Random, max_model_len: int) -> bytes:
    """Prompts of 1 to 1,500 tokens, half of them behind one of three beginnings; n, log probabilities."""
    length = min(int(10 ** draw.uniform(0, 3.17)), max_model_len - 40)
    ids = [draw.randrange(1000, 40_000) for _ in range(length)]
    if draw.random() < 0.5:
        beginning = random.Random(draw.randrange(3))
        ids = ([beginning.randrange(1000, 40_000) for _ in range(400)] + ids)[: max_model_len - 40]
    fields: dict[str, object] = {
        "prompt": ids,
        "max_tokens": draw.randrange(1, 33),
        "temperature": draw.choice([0, 0.8]),
        "n": draw.choice([1, 1, 1, 3]),
        "stream": draw.random() < 0.5,
    }
    if draw.random() < 0.2:
        fields["logprobs"] = 5
    return json.dumps(fields).encode()


async def ask(server: Server, body: bytes, leaves_after_s: float | None) -> None:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    head = f"Host: x\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {len(body)}"
    writer.write(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n\r\n".encode() + body)
    try:
        answer = await asyncio.wait_for(reader.read(-1), leaves_after_s)
        if b" 200 " not in answer[:20]:
            raise SystemExit(answer[:500].decode(errors="replace"))
    except TimeoutError:
        pass
    finally:
        writer.close()


async def metrics(server: Server) -> dict[str, float]:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    page = (await reader.read(-1)).decode()
    writer.close()
    return {name: float(value) for name, value in re.findall(r"(?m)^headrace:(\w+)\{[^}]*\} (\S+)$", page)}


async def run(server: Server, args: argparse.Namespace) -> None:
    draw = random.Random(1)
    left = [
        (body_of(draw, 2048), draw.uniform(0, 2) if draw.random() < 0.1 else None)
        for _ in range(args.num_requests)
    ]
    samples: list[float] = [server.resident_mib()]
    wastes: list[float] = []

    async def client() -> None:
        while left:
            await ask(server, *left.pop())
            if len(left) % 50 == 0:
                samples.append(server.resident_mib())
                page = await metrics(server)
                if page.get("running_answers", 0) >= 15:
                    wastes.append(page["kv_paging_waste_ratio"])
                print(f"{len(left)} left, {samples[-1]:.0f} MiB", file=sys.stderr)

    await asyncio.gather(*(client() for _ in range(16)))
    page = await metrics(server)
    kv_mib = args.kv_cache_memory_bytes / 2**20
    half = samples[len(samples) // 2]
    print(f"before the first request  {samples[0]:8.0f} MiB (K/V is taken when it is first written)")
    print(f"half of the requests      {half:8.0f} MiB")
    print(f"at the end                {samples[-1]:8.0f} MiB, at most {max(samples):.0f}")
    print(f"K/V as asked              {kv_mib:8.0f} MiB")
    print(f"the rest, weights with it {max(samples) - kv_mib:8.0f} MiB")
    if wastes:
        print(
            f"wasted by paging          {100 * sum(wastes) / len(wastes):8.2f} % of held places, 15 rows up"
        )
    print(f"blocks in use at the end  {100 * page['kv_usage_ratio']:8.2f} %")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a name of the catalogue, or a file")
    parser.add_argument("--num-requests", type=int, default=2000, metavar="N", help="default: 2000")
    parser.add_argument("--kv-cache-memory-bytes", type=int, default=256 * 2**20, metavar="N")
    args = parser.parse_args()
    options = ["--kv-cache-memory-bytes", str(args.kv_cache_memory_bytes), "--max-model-len", "2048"]
    server = Server(args.model, options)
    try:
        asyncio.run(run(server, args))
    finally:
        server.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""How often a server's prefix cache hit, from its own counters on /metrics, where it has them."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.bench.http_exchange import HttpClient
from headrace.bench.request_record import OK

# (hit tokens, all tokens): Headrace's names, vLLM's, llama-server's. The client library adds _total.
NAMES = (
    ("headrace:prefix_hit_tokens", "headrace:prefix_queried_tokens"),
    ("vllm:prefix_cache_hits", "vllm:prefix_cache_queries"),
    ("llamacpp:prompt_tokens_cached", "llamacpp:prompt_tokens"),
)


@dataclass(frozen=True, slots=True)
class PrefixCounts:
    source: str  # the counter's name
    num_hit: float
    num_queried: float


async def prefix_counts(client: HttpClient) -> PrefixCounts | None:
    """None: it does not count."""
    reply = await client.get("/metrics")
    if reply.status != OK:
        return None
    values = parse_metrics(reply.body.decode(errors="replace"))
    for hits, queries in NAMES:
        found = [values.get(f"{name}_total", values.get(name)) for name in (hits, queries)]
        if found[0] is not None and found[1] is not None:
            num_queried = found[1] + (found[0] if hits.startswith("llamacpp") else 0.0)
            return PrefixCounts(hits, found[0], num_queried)
    return None


def parse_metrics(text: str) -> dict[str, float]:
    """Samples of Prometheus's text form by name, those of all labels added up."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        series, _, value = line.rpartition("} ") if "}" in line else line.partition(" ")
        name = series.partition("{")[0].strip()
        try:
            values[name] = values.get(name, 0.0) + float(value.split()[0])
        except (ValueError, IndexError):
            continue
    return values


def hit_rate_between(before: PrefixCounts | None, after: PrefixCounts | None) -> float | None:
    if before is None or after is None or after.num_queried <= before.num_queried:
        return None
    return (after.num_hit - before.num_hit) / (after.num_queried - before.num_queried)

# SPDX-License-Identifier: Apache-2.0
"""A long prompt arrives while answers stream, and short requests behind it: who waits for it, how long."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.bench.load import Load, Sender, timed
from headrace.bench.request_record import Call, RequestRecord
from headrace.bench.spread import Spread, spread_of

STREAM, LONG, SHORT = "stream", "long", "short"  # groups of its calls
CALM_S = 3.0  # streams run alone for so long
SHORT_GAP_S = 0.25  # from the long prompt to the first short one, and between those


@dataclass(frozen=True, slots=True, kw_only=True)
class LongPrompt:
    num_streams: int
    num_prompt: int  # tokens of the long prompt
    window_s: float  # from sending it to its first token
    itl_before_s: Spread | None  # of the streams before it came
    itl_during_s: Spread | None  # of the streams' gaps that reach into the window
    ttft_long_s: float
    ttft_short_s: Spread | None


async def run_long_prompt(sender: Sender, calls: Sequence[Call]) -> Load:
    """Streams are given up once all others have been answered."""
    return await timed(sender, lambda: _run(sender, calls))


async def _run(sender: Sender, calls: Sequence[Call]) -> None:
    streams = [sender.begin(call) for call in calls if call.group == STREAM]
    running = [asyncio.ensure_future(sender.finish(stream)) for stream in streams]
    try:
        await asyncio.gather(*(stream.reply.heard.wait() for stream in streams))
        await asyncio.sleep(CALM_S)
        async with asyncio.TaskGroup() as group:
            for call in calls:
                if call.group != STREAM:
                    group.create_task(sender.send(call))
                    await asyncio.sleep(SHORT_GAP_S)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def long_prompt_of(records: Sequence[RequestRecord]) -> LongPrompt | None:
    """None: no long prompt among them was answered."""
    long = next((record for record in records if record.group == LONG and record.is_ok), None)
    if long is None or long.ttft_s is None:
        return None
    begin_s, end_s = long.sent_s, long.sent_s + long.ttft_s
    streams = [record for record in records if record.group == STREAM]
    before: list[float] = []
    during: list[float] = []
    for stream in streams:
        times_s = [stream.sent_s + at_s for at_s in stream.emissions_s]
        for last_s, next_s in itertools.pairwise(times_s):
            if next_s <= begin_s:
                before.append(next_s - last_s)
            elif last_s <= end_s:
                during.append(next_s - last_s)
    short = [r.ttft_s for r in records if r.group == SHORT and r.is_ok and r.ttft_s is not None]
    return LongPrompt(
        num_streams=len(streams),
        num_prompt=long.num_prompt,
        window_s=long.ttft_s,
        itl_before_s=spread_of(before) if before else None,
        itl_during_s=spread_of(during) if during else None,
        ttft_long_s=long.ttft_s,
        ttft_short_s=spread_of(short) if short else None,
    )

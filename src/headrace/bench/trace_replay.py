# SPDX-License-Identifier: Apache-2.0
"""Makes requests out of a trace: its times and lengths, scaled, with text of ours. Where it says which blocks
of prompts are equal, they are."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.bench.call_body import Dialect, completion_body
from headrace.bench.prose import words_of
from headrace.bench.request_record import Call
from headrace.bench.token_ruler import TokenRuler
from headrace.bench.trace import MOONCAKE_BLOCK, TraceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    time: float = 1.0  # 2: gaps twice as long, half the rate
    length: float = 1.0  # of prompts and outputs
    max_model_len: int | None = None  # tokens of prompt and output together; None: whatever comes


@dataclass(frozen=True, slots=True)
class Scaled:
    requests: tuple[TraceRequest, ...]
    num_clipped: int


def scale_trace(requests: Sequence[TraceRequest], scale: Scale) -> Scaled:
    """A request that is too long keeps its output up to half of the room, and loses the prompt's end."""
    scaled, num_clipped = [], 0
    for request in requests:
        num_prompt = max(round(request.num_prompt * scale.length), 1)
        num_output = max(round(request.num_output * scale.length), 1)
        if scale.max_model_len is not None and num_prompt + num_output > scale.max_model_len:
            num_clipped += 1
            num_output = min(num_output, max(scale.max_model_len // 2, 1))
            num_prompt = min(num_prompt, max(scale.max_model_len - num_output, 1))
        scaled.append(
            TraceRequest(
                at_s=request.at_s * scale.time,
                num_prompt=num_prompt,
                num_output=num_output,
                block_ids=request.block_ids,
            )
        )
    return Scaled(tuple(scaled), num_clipped)


async def trace_calls(
    requests: Sequence[TraceRequest], block_tokens: int, dialect: Dialect, ruler: TokenRuler, seed: int
) -> tuple[Call, ...]:
    """
    Args:
        block_tokens: how many tokens of ours a block of the trace is.
    """
    blocks: dict[int, list[str]] = {}
    calls = []
    for number, request in enumerate(requests):
        begin: list[str] = []
        for block_id in request.block_ids[: request.num_prompt // block_tokens]:
            if block_id not in blocks:
                blocks[block_id] = await ruler.fit((), block_tokens, words_of(seed, "block", block_id))
            begin += blocks[block_id]
        # A last block in part: its text begins as the whole block's would.
        last = request.block_ids[request.num_prompt // block_tokens :][:1]
        more = words_of(seed, "block", *last) if last else words_of(seed, "own", number)
        end = itertools.chain(more, words_of(seed, "rest", number))
        words = await ruler.fit(begin, request.num_prompt, end)
        body = completion_body(dialect, " ".join(words), request.num_output)
        calls.append(Call(f"trace-{number}", "/v1/completions", body, request.num_prompt, at_s=request.at_s))
    return tuple(calls)


def block_tokens_of(scale: Scale) -> int:
    return max(round(MOONCAKE_BLOCK * scale.length), 1)

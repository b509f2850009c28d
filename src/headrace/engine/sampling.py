# SPDX-License-Identifier: Apache-2.0
"""From what a caller asked (`SamplingParams`) to what a backend does (`DrawPlan`, `OutputPlan`). A draw
depends on nothing but its own sequence, so that batching, chunking and preemption cannot change it."""

from __future__ import annotations

import math
import os
from dataclasses import replace

from headrace.core.plan import DrawPlan, OutputPlan
from headrace.engine.sequence import Sequence

SEED_MASK = 2**64 - 1


def resolve_seed(seed: int | None) -> int:
    """The seed as asked, wrapped to 64 bits; a fresh random one when none was asked for."""
    return int.from_bytes(os.urandom(8)) if seed is None else seed & SEED_MASK


def seed_of(seed: int, index: int) -> int:
    """The seed of sequence `index` of a request."""
    return (seed + index) & SEED_MASK


def outputs_of(sequence: Sequence, begin: int, num_new: int, num_drawable: int) -> tuple[OutputPlan, ...]:
    """Where logits are wanted when `num_new` tokens from place `begin` on are computed: at prompt places
    whose next token is to be scored, and at the last known token, where the next one is drawn."""
    end = begin + num_new
    outputs: tuple[OutputPlan, ...] = ()
    if len(sequence.scores) < sequence.num_to_score:
        num_top = sequence.params.prompt_logprobs
        assert num_top is not None
        places = range(max(begin, len(sequence.scores)), min(end, sequence.num_to_score))
        outputs = tuple(
            OutputPlan(
                index=place - begin,
                draw=None,
                target=sequence.tokens[place + 1],
                num_top=num_top,
                num_drawable=num_drawable,
            )
            for place in places
        )
    if end == sequence.num_known and sequence.num_output < sequence.max_output:
        num_top = -1 if sequence.params.logprobs is None else sequence.params.logprobs
        outputs += (OutputPlan(num_new - 1, draw_plan(sequence), None, num_top, num_drawable),)
    return outputs


def with_history(output: OutputPlan, tokens: list[int]) -> OutputPlan:
    """The same draw once all of the tokens before it are known."""
    assert output.draw is not None
    return replace(output, draw=replace(output.draw, history=tuple(tokens)))


def draw_plan(sequence: Sequence) -> DrawPlan:
    """How the token after the last known one is drawn."""
    params = sequence.params
    is_penalised = (
        params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
    )
    is_greedy = params.is_greedy
    return DrawPlan(
        temperature=0.0 if is_greedy else float(params.temperature),
        top_k=0 if is_greedy else max(params.top_k, 0),
        top_p=1.0 if is_greedy else float(params.top_p),
        min_p=0.0 if is_greedy else float(params.min_p),
        repetition_penalty=float(params.repetition_penalty),
        presence_penalty=float(params.presence_penalty),
        frequency_penalty=float(params.frequency_penalty),
        seed=sequence.seed,
        position=sequence.num_known,
        logit_bias=_bias(sequence),
        history=tuple(sequence.tokens) if is_penalised else (),
        num_prompt=sequence.num_prompt,
    )


def _bias(sequence: Sequence) -> tuple[tuple[int, float], ...]:
    """The caller's bias; while `min_tokens` are not out, ending tokens are banned whatever it says."""
    bias = sequence.params.logit_bias
    if sequence.num_output >= sequence.params.min_tokens:
        return bias
    banned = sequence.end_ids
    return (
        *((token, value) for token, value in bias if token not in banned),
        *((token, -math.inf) for token in sorted(banned)),
    )

# SPDX-License-Identifier: Apache-2.0
"""What an engine costs beside its backend's computation, with all rows running at once."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.bench.spread import Spread, spread_of
from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.events import Event, Failed, Finished, Sink, StepRecord
from headrace.core.request import GenerateRequest, SamplingParams

SubmitAll = Callable[[Sequence[GenerateRequest], Sink], None]
Fill = Callable[[], tuple[int, int]]  # token places in held blocks, and those with K/V in them

SAMPLE_S = 0.05  # between two looks at the blocks
SILENCE_S = 600.0  # a machine that needs longer for one row's end is not being measured any more


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLoad:
    """So many rows at once, all alike, so many times."""

    num_rows: int
    prompt_tokens: int
    output_tokens: int
    rounds: int

    def __post_init__(self) -> None:
        for name, least in (("num_rows", 1), ("prompt_tokens", 1), ("output_tokens", 2), ("rounds", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")

    @property
    def num_tokens(self) -> int:
        """Of one row, prompt and output."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCost:
    decode_step_s: Spread  # steps in which every row draws and none reads its prompt
    outside_s: Spread  # of each of these, what was not the backend's computation
    outside_share: float  # of all of these together
    outside_share_all: float  # of all steps, those of prompts included
    decode_tokens_per_s: float
    prompt_tokens_per_s: float  # of steps that compute prompts, whatever else they do
    num_steps: int
    paging_waste: float  # the share of places in held blocks that hold nothing, over time


class StepLog:
    """Hears of steps on the engine's thread."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []

    def __call__(self, record: StepRecord) -> None:
        self.records.append(record)


def measure_rows(
    submit_all: SubmitAll,
    fill: Fill,
    log: StepLog,
    load: RowLoad,
    vocab_size: int,
    on_round: Callable[[], object] = lambda: None,
) -> EngineCost:
    """The first round warms up and is not counted."""
    random = np.random.default_rng(0)
    samples: list[tuple[int, int]] = []
    for number in range(load.rounds + 1):
        if number == 1:
            log.records.clear()
            samples.clear()
        _run_round(submit_all, fill, load, random, vocab_size, number, samples)
        on_round()
    return engine_cost(log.records, samples, load.num_rows)


def engine_cost(
    records: Sequence[StepRecord], samples: Sequence[tuple[int, int]], num_rows: int
) -> EngineCost:
    decode = [step for step in records if step.num_prompt_tokens == 0 and step.num_drawn == num_rows]
    prompt = [step for step in records if step.num_prompt_tokens > 0]
    if not decode or not prompt:
        raise HeadraceError(f"no step had all {num_rows} rows drawing; are there KV blocks for all of them?")
    num_leased = sum(leased for leased, _ in samples)
    return EngineCost(
        decode_step_s=spread_of([step.step_s for step in decode]),
        outside_s=spread_of([step.step_s - step.native_s for step in decode]),
        outside_share=_outside_share(decode),
        outside_share_all=_outside_share(records),
        decode_tokens_per_s=sum(s.num_drawn for s in decode) / sum(s.step_s for s in decode),
        prompt_tokens_per_s=sum(s.num_prompt_tokens for s in prompt) / sum(s.step_s for s in prompt),
        num_steps=len(records),
        paging_waste=1 - sum(filled for _, filled in samples) / num_leased if num_leased else 0.0,
    )


def _outside_share(records: Sequence[StepRecord]) -> float:
    return 1 - sum(step.native_s for step in records) / sum(step.step_s for step in records)


def _run_round(
    submit_all: SubmitAll,
    fill: Fill,
    load: RowLoad,
    random: np.random.Generator,
    vocab_size: int,
    number: int,
    samples: list[tuple[int, int]],
) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=load.output_tokens, ignore_eos=True)
    requests = [
        GenerateRequest(
            request_id=f"bench-{number}-{row}",
            prompt_ids=tuple(random.integers(0, vocab_size, load.prompt_tokens).tolist()),
            params=params,
        )
        for row in range(load.num_rows)
    ]
    ends: queue.SimpleQueue[Event] = queue.SimpleQueue()
    submit_all(requests, lambda event: ends.put(event) if isinstance(event, Finished | Failed) else None)
    num_running, silent_s = load.num_rows, 0.0
    while num_running:
        try:
            event = ends.get(timeout=SAMPLE_S)
        except queue.Empty:
            samples.append(fill())
            silent_s += SAMPLE_S
            if silent_s > SILENCE_S:
                raise HeadraceError(f"no row ended for {SILENCE_S:.0f} s") from None
            continue
        if isinstance(event, Failed):
            raise HeadraceError(f"a request failed: {event.message}")
        num_running, silent_s = num_running - 1, 0.0

# SPDX-License-Identifier: Apache-2.0
"""Drives a backend as an engine would: sequences of known tokens whose K/V lies in scattered blocks, some
tokens of each computed in a step, every place scored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.core.plan import Backend, OutputPlan, RowPlan, StepPlan, TokenResult

NUM_TOP = 20
Chunks = list[dict[int, int]]  # a step each: sequence number -> how many of its tokens to compute


@dataclass(frozen=True)
class ScoredPlace:
    sequence: int
    place: int  # index of the token that the model has just read
    result: TokenResult


def score(backend: Backend, sequences: list[list[int]], steps: Chunks, seed: int = 0) -> list[ScoredPlace]:
    """Each place of each sequence scored against a random target and with its top tokens."""
    rng = np.random.default_rng(seed)
    tables = _scattered_tables(backend, sequences, rng)
    computed = [0] * len(sequences)
    scored = []
    for step in steps:
        rows = []
        for number, num_new in step.items():
            tokens = tuple(sequences[number][computed[number] : computed[number] + num_new])
            assert len(tokens) == num_new, "the schedule asks for more tokens than there are"
            targets = rng.integers(0, backend.info.vocab_size, num_new)
            outputs = tuple(OutputPlan(i, None, int(target), NUM_TOP) for i, target in enumerate(targets))
            rows.append(RowPlan(100 + number, tokens, computed[number], tables[number], outputs))
        result = backend.execute(StepPlan(tuple(rows)))
        for row, row_result in zip(rows, result.rows, strict=True):
            number = row.sequence_id - 100
            scored += [
                ScoredPlace(number, computed[number] + index, token)
                for index, token in enumerate(row_result.outputs)
            ]
            computed[number] += row.num_new
    assert computed == [len(sequence) for sequence in sequences], "the schedule leaves tokens out"
    return scored


def _scattered_tables(
    backend: Backend, sequences: list[list[int]], rng: np.random.Generator
) -> list[tuple[int, ...]]:
    free = list(rng.permutation(backend.info.num_blocks))
    tables = []
    for sequence in sequences:
        num_blocks = -(-len(sequence) // backend.info.block_size)
        assert num_blocks <= len(free), "the backend has too few blocks for this test"
        tables.append(tuple(int(free.pop()) for _ in range(num_blocks)))
    return tables


def worst_error(scored: list[ScoredPlace], oracle: list[np.ndarray]) -> float:
    """The largest distance of any scored log probability from the oracle's logits (places, V), as a share of
    the spread of that place's logits. The listed top tokens must be the top of the oracle, in order."""
    worst = 0.0
    for entry in scored:
        logits = oracle[entry.sequence][entry.place].astype(np.float64)
        expected = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        tokens = [entry.result.token] + [token for token, _ in entry.result.top]
        values = np.array([entry.result.logprob] + [value for _, value in entry.result.top])
        best = np.sort(expected)[::-1][:NUM_TOP]
        errors = np.abs(values - expected[tokens]), np.abs(values[1:] - best)
        worst = max(worst, *(float(error.max()) / float(logits.std()) for error in errors))
    return worst

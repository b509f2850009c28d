# SPDX-License-Identifier: Apache-2.0
"""Perplexity as llama.cpp's tool defines it, straight through a backend: the text's tokens are cut into
windows that do not overlap, and the second half of each is scored given all before it in its window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.errors import ConfigError
from headrace.core.plan import Backend, OutputPlan, RowPlan, StepPlan

TOKENS_A_STEP = 128  # bounds the logits held at once


@dataclass(frozen=True, slots=True)
class Perplexity:
    value: float
    standard_error: float  # of the value; 0 for a single token
    mean_nll: float  # natural logarithm, of each scored token
    num_scored: int


def cut_windows(ids: Sequence[int], window: int, bos_id: int | None) -> list[tuple[int, ...]]:
    """The whole windows of `ids`, which starts with BOS if the model wants one; then `bos_id` is given and
    takes the place of each window's first token."""
    starts = range(0, len(ids) - window + 1, window)
    cut = [tuple(ids[start : start + window]) for start in starts]
    return cut if bos_id is None else [(bos_id, *tokens[1:]) for tokens in cut]


def first_windows(
    ids: Sequence[int], window: int, num_windows: int | None, bos_id: int | None
) -> list[tuple[int, ...]]:
    """The first `num_windows` windows, all when None. ConfigError: the text has not so many."""
    if window < 3:
        raise ConfigError(f"a window must be at least 3 tokens, got {window}")
    windows = cut_windows(ids, window, bos_id)
    wanted = max(len(windows), 1) if num_windows is None else num_windows
    if not 1 <= wanted <= len(windows):
        raise ConfigError(
            f"the text has {len(ids)} tokens and makes {len(windows)} windows of {window}; asked for {wanted}"
        )
    return windows[:wanted]


def check_fits(backend: Backend, window: int) -> None:
    """ConfigError if the backend cannot hold a window."""
    info = backend.info
    room = min(info.max_model_len, info.num_blocks * info.block_size)
    if window > room:
        raise ConfigError(f"a window of {window} tokens does not fit: the model takes {room}")


def first_scored(window: int) -> int:
    """Index of the first token that counts: llama.cpp reads logits from the middle place on."""
    return window // 2 + 1


def token_nlls(backend: Backend, tokens: Sequence[int], first: int) -> list[float]:
    """Negative log likelihood of tokens[first:], each given all tokens before it."""
    info = backend.info
    blocks = tuple(range(-(-len(tokens) // info.block_size)))
    nlls: list[float] = []
    for start in range(0, len(tokens), TOKENS_A_STEP):
        chunk = tuple(tokens[start : start + TOKENS_A_STEP])
        places = range(max(first - 1 - start, 0), min(len(chunk), len(tokens) - 1 - start))
        outputs = tuple(OutputPlan(place, None, tokens[start + place + 1], 0) for place in places)
        result = backend.execute(StepPlan((RowPlan(0, chunk, start, blocks, outputs),)))
        nlls += [-token.logprob for token in result.rows[0].outputs]
    return nlls


def perplexity(nlls: Sequence[float]) -> Perplexity:
    mean = math.fsum(nlls) / len(nlls)
    variance = math.fsum((nll - mean) ** 2 for nll in nlls) / max(len(nlls) - 1, 1)
    value = math.exp(mean)
    return Perplexity(
        value=value,
        standard_error=value * math.sqrt(variance / len(nlls)),
        mean_nll=mean,
        num_scored=len(nlls),
    )

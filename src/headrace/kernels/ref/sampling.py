# SPDX-License-Identifier: Apache-2.0
"""How a token is drawn, in numpy: the definition that native/ref/sampling.cpp follows without sorting.
It sorts, it is slow, and it knows nothing of requests beyond the DrawPlan."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.core.plan import DrawPlan

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]

LOWEST_EXPONENT = -64.0  # a weight below exp(-64) cannot be hit by a 53-bit uniform number: it counts as 0
NO_TOKEN = -1  # every logit is -inf or NaN
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(z: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & _MASK
    return z ^ z >> 31


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on (seed, position) alone. Both are taken modulo 2**64."""
    mixed_seed = _mix((seed + _GOLDEN) & _MASK)
    bits = _mix((mixed_seed + (position + 1) * _GOLDEN) & _MASK)
    return (bits >> 11) * 2.0**-53


def draw_token(logits: Floats, draw: DrawPlan) -> int:
    """Draw from logits (V,), which stay untouched. -1 when all are -inf or NaN.

    Order: bias, penalties, then greedy, or temperature, top-k, top-p (of what top-k left), min-p. At ties
    in likelihood the lower id counts as the more likely. The draw walks the survivors in order of id."""
    with np.errstate(all="ignore"):
        adjusted = _penalised(_biased(np.array(logits, dtype=np.float32), draw), draw)
        live = np.flatnonzero(adjusted > -np.inf)  # drops NaN as well
        if live.size == 0:
            return NO_TOKEN
        order = live[np.lexsort((live, -adjusted[live]))]  # most likely first
        best = int(order[0])
        greedy = not draw.temperature > 0 or draw.top_k == 1 or not draw.top_p > 0
        if greedy or np.isinf(adjusted[best]):
            return best
        if 0 < draw.top_k < adjusted.size:
            order = order[: draw.top_k]
        scaled = (adjusted[order] - adjusted[best]) / np.float32(draw.temperature)
        weights = np.where(scaled >= LOWEST_EXPONENT, np.exp(scaled.astype(np.float64)), 0.0)
    kept = _nucleus_size(weights, float(np.float32(draw.top_p)))
    order, weights = order[:kept], weights[:kept]
    enough = (weights >= np.float32(draw.min_p)) & (weights > 0)
    return _walk(order[enough], weights[enough], uniform(draw.seed, draw.position))


def log_probabilities(
    logits: Floats, token: int, num_top: int
) -> tuple[float, tuple[tuple[int, float], ...]]:
    """The log-softmax value of `token`, and the num_top most likely tokens (lower id first at ties) with
    theirs. NaN and -inf logits have no weight and are not listed; if there is nothing else, all is NaN."""
    live = np.flatnonzero(logits > -np.inf)
    if live.size == 0:
        return float("nan"), ()
    wide = logits.astype(np.float64)
    largest = wide[live].max()
    norm = largest + np.log(np.exp(wide[live] - largest).sum())
    order = live[np.lexsort((live, -logits[live]))][:num_top]
    return float(wide[token] - norm), tuple((int(i), float(wide[i] - norm)) for i in order)


def _biased(logits: Floats, draw: DrawPlan) -> Floats:
    for token, bias in draw.logit_bias:
        logits[token] += np.float32(bias)
    return logits


def _penalised(logits: Floats, draw: DrawPlan) -> Floats:
    """Repetition penalty as in CTRL (Keskar et al. 2019) on every id of history; presence and frequency
    on the ids after the prompt, as OpenAI defines them. Ids that have no logit are passed over."""
    history = np.array(draw.history, dtype=np.int64)
    output, counts = np.unique(history[draw.num_prompt :], return_counts=True)
    output, counts = output[output < logits.size], counts[output < logits.size]
    seen = np.unique(history)
    seen = seen[seen < logits.size]
    penalty = np.float32(draw.repetition_penalty)
    if penalty != 1:
        logits[seen] = np.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
    subtract = float(np.float32(draw.presence_penalty)) + float(np.float32(draw.frequency_penalty)) * counts
    logits[output] = (logits[output].astype(np.float64) - subtract).astype(np.float32)
    return logits


def _nucleus_size(weights: Weights, top_p: float) -> int:
    """How many of the sorted weights make the smallest set with top_p of their sum, at least one."""
    if top_p >= 1:
        return weights.size
    reached = np.cumsum(weights) >= top_p * weights.sum()
    return int(np.argmax(reached)) + 1 if reached.any() else weights.size


def _walk(tokens: Ids, weights: Weights, u: float) -> int:
    by_id = np.argsort(tokens)
    sums = np.cumsum(weights[by_id])
    place = int(np.searchsorted(sums, u * sums[-1], side="right"))
    return int(tokens[by_id[min(place, tokens.size - 1)]])

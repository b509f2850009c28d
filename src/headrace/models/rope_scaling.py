# SPDX-License-Identifier: Apache-2.0
"""Ways to stretch a rotary embedding over a longer context, each as divisors of the pair frequencies
(`RopeSpec.freq_factors`): pair i turns at base**(-2i/dim) / factors[i] radians a token."""

from __future__ import annotations

import math


def llama3_freq_factors(
    *, dim: int, base: float, factor: float, low_freq_factor: float, high_freq_factor: float, original: int
) -> tuple[float, ...]:
    """Llama 3.1's rule: waves that fit many times into the `original` context keep their frequency, those
    that hardly fit are slowed by `factor`, those between are blended."""

    def of_pair(pair: int) -> float:
        turns = original / (2 * math.pi * math.pow(base, 2 * pair / dim))  # of this pair within `original`
        if turns > high_freq_factor:
            return 1.0
        if turns < low_freq_factor:
            return factor
        keep = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
        return 1.0 / ((1 - keep) / factor + keep)

    return tuple(of_pair(pair) for pair in range(dim // 2))


def yarn_freq_factors(
    *,
    dim: int,
    base: float,
    factor: float,
    original: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> tuple[float, ...]:
    """YaRN (Peng et al. 2023): pairs that turn more than `beta_fast` times within `original` keep their
    frequency, those below `beta_slow` are slowed by `factor`, with a linear ramp over the pair index."""

    def pair_that_turns(times: float) -> float:
        return dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair_that_turns(beta_fast), pair_that_turns(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = (high - low) or 0.001

    def of_pair(pair: int) -> float:
        slow = min(max((pair - low) / width, 0.0), 1.0)
        return 1.0 / (slow / factor + (1 - slow))

    return tuple(of_pair(pair) for pair in range(dim // 2))


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """How much longer YaRN makes q and k, so that attention stays as sharp over the stretched context."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

# SPDX-License-Identifier: Apache-2.0
"""Who computes how much in a step. First come, first served: sequences with one token left to compute
(those in the middle of their answer) each get it first, prompts share what the budget leaves in order of
arrival. It looks at counts only and knows nothing of blocks."""

from __future__ import annotations

from collections.abc import Sequence as Ordered

from headrace.engine.budget import StepBudget
from headrace.engine.sequence import Sequence


def share(running: Ordered[Sequence], budget: StepBudget) -> list[int]:
    """Tokens for each running sequence, in the order given; 0 means it sits this step out."""
    shares = [0] * len(running)
    for wants_one in (True, False):
        for place, sequence in enumerate(running):
            if (sequence.num_left == 1) is wants_one:
                shares[place] = budget.spend(sequence)
    return shares

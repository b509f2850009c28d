# SPDX-License-Identifier: Apache-2.0
"""How much of a sequence one step may compute: prompt places that are scored cost more than others."""

from __future__ import annotations

from headrace.engine.sequence import Sequence

# A scored place costs a row of logits: 128 rows of 256k float32 are 128 MiB. Prompts that want scores at
# every place advance in chunks of at most this many.
MAX_SCORED = 128


class ScoreBudget:
    """Spent while a plan is made, then thrown away."""

    def __init__(self, max_scored: int = MAX_SCORED) -> None:
        self._left = max_scored

    def cap(self, sequence: Sequence, num_left: int) -> int:
        """How many of its `num_left` uncomputed tokens the sequence may compute, and sets them aside."""
        num_unscored = sequence.num_to_score - len(sequence.scores)
        if num_unscored <= 0:
            return num_left
        # After a preemption, places scored before are computed again and not scored again.
        num_rescored = max(len(sequence.scores) - sequence.num_computed, 0)
        # At least one, over the limit if need be, so that nobody is held up by others' scores.
        num_new = min(num_left, num_rescored + max(self._left, 1))
        self._left -= min(max(num_new - num_rescored, 0), num_unscored)
        return num_new

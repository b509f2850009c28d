# SPDX-License-Identifier: Apache-2.0
"""How much one step may compute: tokens, and prompt places that are scored."""

from __future__ import annotations

from headrace.engine.sequence import Sequence

# A scored place costs a row of logits: 128 rows of 256k float32 are 128 MiB. Prompts that want scores at
# every place advance in chunks of at most this many.
MAX_SCORED = 128


class StepBudget:
    """Spent while a plan is made, then thrown away."""

    def __init__(self, max_tokens: int, max_scored: int = MAX_SCORED) -> None:
        self._tokens_left = max_tokens
        self._scored_left = max_scored

    @property
    def is_spent(self) -> bool:
        return self._tokens_left == 0

    def spend(self, sequence: Sequence) -> int:
        """How many of the sequence's uncomputed tokens to compute in this step; may be 0."""
        num_new = min(sequence.num_left, self._tokens_left)
        num_unscored = sequence.num_to_score - len(sequence.scores)
        if num_unscored > 0:
            # After a preemption, places scored before are computed again and not scored again.
            num_rescored = max(len(sequence.scores) - sequence.num_computed, 0)
            # At least one, over the limit if need be, so that nobody is held up by others' scores.
            num_new = min(num_new, num_rescored + max(self._scored_left, 1))
            self._scored_left -= min(max(num_new - num_rescored, 0), num_unscored)
        self._tokens_left -= num_new
        return num_new

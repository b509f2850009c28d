# SPDX-License-Identifier: Apache-2.0
"""The engine's numbers at one moment, for whoever shows them. Counts only grow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.engine.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    num_running: int
    num_waiting: int
    num_blocks: int
    num_free_blocks: int
    num_steps: int
    num_computed_tokens: int  # prompt tokens, output tokens fed back, and those computed again
    num_output_tokens: int  # drawn
    num_preemptions: int
    num_waiting_for_blocks: int  # of num_waiting: held up by nothing but a lack of KV blocks
    num_queued_tokens: int  # prompt tokens of those that wait
    num_cached_blocks: int  # findable by their contents, held or not; those not held count as free
    num_evicted_blocks: int
    num_queried_tokens: int  # prompt tokens looked up in the prefix cache
    num_hit_tokens: int  # of them found
    num_refused_queue_full: int  # requests
    num_refused_slo: int
    num_leased_places: int  # token places in held blocks
    num_filled_places: int  # of them with a token's K/V in them
    step_s: float  # spent in plan, execute, commit and emit
    native_s: float  # of that, inside the backend's computation

    @property
    def kv_usage(self) -> float:
        """The share of KV blocks in use, 0 to 1."""
        return 1.0 - self.num_free_blocks / self.num_blocks

    @property
    def paging_waste(self) -> float:
        """The share of leased places that hold nothing, 0 to 1."""
        return 1.0 - self.num_filled_places / self.num_leased_places if self.num_leased_places else 0.0


def fill_of(sequences: Iterable[Sequence], block_size: int) -> tuple[int, int]:
    """Token places in the blocks that these sequences hold, and those with a token's K/V in them. A shared
    block counts once."""
    num_filled: dict[int, int] = {}
    for sequence in sequences:
        num_left = sequence.num_computed
        for block_id in sequence.lease.block_ids:
            num_filled[block_id] = max(num_filled.get(block_id, 0), min(max(num_left, 0), block_size))
            num_left -= block_size
    return len(num_filled) * block_size, sum(num_filled.values())

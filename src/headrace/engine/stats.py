# SPDX-License-Identifier: Apache-2.0
"""The engine's numbers at one moment, for whoever shows them. Counts only grow."""

from __future__ import annotations

from dataclasses import dataclass


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
    step_s: float  # spent in plan, execute, commit and emit
    native_s: float  # of that, inside the backend's computation

    @property
    def kv_usage(self) -> float:
        """The share of KV blocks in use, 0 to 1."""
        return 1.0 - self.num_free_blocks / self.num_blocks

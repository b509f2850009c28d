# SPDX-License-Identifier: Apache-2.0
"""One stream of tokens, the unit of scheduling. Only `scheduler.commit` (and `drop`) writes to it;
everybody else sees events and `RowPlan`s."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.core.events import FinishReason
from headrace.core.plan import TokenResult
from headrace.core.request import SamplingParams
from headrace.kv.lease import BlockLease


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """Tokens known and tokens computed, chasing each other. `tokens[:num_computed]` have valid K/V in
    the lease's blocks. A preempted sequence has num_computed 0 and an empty lease, and loses nothing else.
    """

    sequence_id: int  # also the order of arrival
    request_id: str
    index: int  # which of the request's n
    params: SamplingParams
    seed: int  # resolved, 0 .. 2**64-1
    max_output: int  # resolved: how many tokens there is room for
    end_ids: frozenset[int]  # drawing one of them ends the sequence
    num_to_score: int  # prompt tokens 1 .. num_to_score get log probabilities
    owes_scores: bool  # a PromptScored event is due
    num_prompt: int
    tokens: list[int]  # prompt, then output
    lease: BlockLease
    num_computed: int = 0
    scores: list[TokenResult] = field(default_factory=list)  # of prompt tokens 1, 2, ...

    @property
    def num_known(self) -> int:
        return len(self.tokens)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_left(self) -> int:
        """Known tokens whose K/V is not computed yet."""
        return len(self.tokens) - self.num_computed

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the sequence is over, None while it is not. An end token outranks a limit reached with it."""
        if self.num_output and self.tokens[-1] in self.end_ids:
            return "stop"
        if self.num_output >= self.max_output and self.num_computed >= self.num_prompt:
            return "length"
        return None

# SPDX-License-Identifier: Apache-2.0
"""One stream of tokens, the unit of scheduling. Only the scheduler writes to it (`begin`, `commit`, `drop`);
everybody else sees events and `RowPlan`s."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.core.events import FinishReason
from headrace.core.plan import TokenResult
from headrace.core.request import SamplingParams
from headrace.engine.wait_clock import WaitClock
from headrace.kv.lease import BlockLease


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """Tokens known and tokens computed, chasing each other. `tokens[:num_computed]` have K/V in the lease's
    blocks, valid when the step that runs has ended. A preempted sequence has num_computed 0 and an empty
    lease, and loses nothing else. While a step draws its next token, the last of `tokens` is UNKNOWN.
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
    arrival_s: float  # time.monotonic()
    clock: WaitClock  # until the first token
    priority: int = 0
    tenant: str = ""
    deadline_s: float | None = None  # of the first token, time.monotonic()
    foreseen_s: float | None = None  # how long after arrival it was to come, None: nobody looked
    root_key: bytes = b""  # before the first block's key
    keys: list[bytes] = field(default_factory=list)  # of the blocks that known tokens fill
    tail_key: bytes | None = None  # of what the prompt leaves in its last block, None when that is full
    num_computed: int = 0
    num_settled: int = 0  # of num_computed, without what the running step computes
    num_cached: int = 0  # of the prompt, found in the cache at the first start
    num_preemptions: int = 0
    scores: list[TokenResult] = field(default_factory=list)  # of prompt tokens 1, 2, ...
    started_s: float | None = None  # time.monotonic() of its first row
    first_token_s: float | None = None
    last_token_s: float | None = None

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
    def num_reusable(self) -> int:
        """How many of the known tokens' K/V may come from a cache: at least one place is computed, to draw
        from, and so is every place that is still to be scored."""
        if len(self.scores) < self.num_to_score:
            return len(self.scores)
        return len(self.tokens) - 1

    @property
    def is_full(self) -> bool:
        """Whether the token that is drawn now, or was last, is its last by its limit."""
        return self.num_output >= self.max_output and self.num_computed >= self.num_prompt

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the sequence is over, None while it is not. An end token outranks a limit reached with it."""
        if self.num_output and self.tokens[-1] in self.end_ids:
            return "stop"
        return "length" if self.is_full else None

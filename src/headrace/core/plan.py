# SPDX-License-Identifier: Apache-2.0
"""The words that cross between the engine, which decides, and a backend, which computes. All frozen.

A row has tokens known and tokens computed; a step computes some more of them. Nothing here asks
whether a row is in "prefill" or "decode"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class DrawPlan:
    """How one token is drawn. The draw depends on nothing but these values and the logits:
    the uniform number comes from (seed, position) by a counter-based generator."""

    temperature: float  # 0: the most likely token
    top_k: int  # 0: off
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int  # 0 .. 2**64-1
    position: int  # index in the sequence of the token being drawn
    logit_bias: tuple[tuple[int, float], ...]  # also carries bans as -inf (min_tokens)
    history: tuple[int, ...]  # all known ids when a penalty is on, else ()
    num_prompt: int  # how many of history are prompt


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """One place where logits are wanted: draw the next token there, or score a given one."""

    index: int  # place within the row's tokens, 0 .. num_new-1
    draw: DrawPlan | None  # exactly one of draw and target is set
    target: int | None  # score this token id
    num_top: int  # -1: no log probabilities at all; n >= 0: the token's and the n most likely
    # Ids from this one on are as if the model did not have them: an embedding may have more rows than the
    # tokenizer has tokens. They are never drawn or listed and have no share of the probability. 0: no such.
    num_drawable: int = 0


UNKNOWN = -1  # stands in a plan made ahead for the token that the step before it is drawing


@dataclass(frozen=True, slots=True)
class RowPlan:
    """A sequence's place in a step."""

    sequence_id: int
    tokens: tuple[int, ...]  # (num_new,) ids to compute K/V of; none is UNKNOWN when it is executed
    num_computed: int  # places before them whose K/V is valid
    block_ids: tuple[int, ...]  # (B,) cover num_computed + num_new places
    outputs: tuple[OutputPlan, ...]  # in order of index; at most one draw, at the last index

    @property
    def num_new(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """All of a block's K/V, in every layer, copied into another block before the step's rows are computed:
    how a row goes on behind the part of a block that it shares with somebody else's."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    rows: tuple[RowPlan, ...]
    # Sequences whose blocks this step takes back, worst placed first. For the engine: a backend ignores it.
    preempted: tuple[int, ...] = ()
    copies: tuple[BlockCopy, ...] = ()  # no target is a source, and none is a target twice

    @property
    def num_tokens(self) -> int:
        return sum(row.num_new for row in self.rows)


@dataclass(frozen=True, slots=True)
class TokenResult:
    """A drawn or scored token. `logprob` and `top` are of the model's own distribution over the drawable
    ids (logits before bias, penalties and temperature), natural logarithm; `top` is sorted, most likely
    first."""

    token: int
    logprob: float  # 0.0 when none were asked for
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class RowResult:
    sequence_id: int
    outputs: tuple[TokenResult, ...]  # one for each OutputPlan, same order; () when the row broke
    error: str | None = None  # why it broke, alone: the step's other rows hold


@dataclass(frozen=True, slots=True)
class StepResult:
    rows: tuple[RowResult, ...]  # same order as the plan's rows
    native_s: float  # time inside the computation itself, for the overhead figure


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """What the engine needs to know of a backend to plan for it."""

    vocab_size: int  # ids 0 .. vocab_size-1 may be fed and drawn
    max_model_len: int  # tokens, prompt and output together
    block_size: int  # token places in a KV block
    num_blocks: int  # blocks in the KV storage
    # A row's results are the same to the bit whatever else is in its steps, and however it is cut into them.
    is_batch_invariant: bool = False


@runtime_checkable
class Backend(Protocol):
    """Seam between engine and runner. Ready when constructed; one thread calls it at a time."""

    @property
    def info(self) -> BackendInfo: ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute every row; rows do not influence each other. A plan that breaks the contract
        (block ids out of range, ids outside the vocabulary, too few blocks) raises ValueError
        before anything is written."""
        ...

    def close(self) -> None: ...

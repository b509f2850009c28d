# SPDX-License-Identifier: Apache-2.0
"""A backend without a model, for testing everything above it with integers. It keeps a value in each paged
slot and computes logits from the values that it finds *through the block table*, so that a wrong block id, a
block taken too early or a place left out changes the answer."""

from __future__ import annotations

import time
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from headrace.core.plan import (
    BackendInfo,
    DrawPlan,
    OutputPlan,
    RowPlan,
    RowResult,
    StepPlan,
    StepResult,
    TokenResult,
)
from headrace.runner.plan_check import check_plan

_U64 = np.uint64
_UNWRITTEN = 0xDEADBEEF


class FakeBackend:
    """The value of a place mixes its token with the value before it, as K/V depend on all that came before.

    logits[v] is a number in [-4, 4) made from v and a weighted sum of all values up to the place. A draw adds
    the bias; at temperature 0 it takes the largest (lowest id at ties), else the largest of
    logits / temperature + Gumbel(seed, position, v). top-k, top-p, min-p and penalties are ignored.

    Args:
        fail_at: steps, counted from 0, at which `execute` raises RuntimeError before writing anything.
        step_s: how long each step pretends to take.
    """

    def __init__(
        self,
        *,
        vocab_size: int = 64,
        max_model_len: int = 256,
        block_size: int = 4,
        num_blocks: int = 64,
        fail_at: Collection[int] = (),
        step_s: float = 0.0,
    ) -> None:
        self._info = BackendInfo(vocab_size, max_model_len, block_size, num_blocks, is_batch_invariant=True)
        self._values = np.full(num_blocks * block_size, _UNWRITTEN, dtype=_U64)  # (num_blocks * S,)
        self._ids = np.arange(vocab_size, dtype=_U64)  # (V,)
        self._fail_at = frozenset(fail_at)
        self._step_s = step_s
        self.num_steps = 0
        self.is_closed = False

    @property
    def info(self) -> BackendInfo:
        return self._info

    def execute(self, plan: StepPlan) -> StepResult:
        begin_s = time.perf_counter()
        step, self.num_steps = self.num_steps, self.num_steps + 1
        if step in self._fail_at:
            raise RuntimeError(f"told to fail at step {step}")
        check_plan(plan, self._info)
        if self._step_s:
            time.sleep(self._step_s)
        blocks = self._values.reshape(self._info.num_blocks, self._info.block_size)
        for copy in plan.copies:
            blocks[copy.target] = blocks[copy.source]
        rows = tuple(RowResult(row.sequence_id, self._run_row(row)) for row in plan.rows)
        return StepResult(rows=rows, native_s=time.perf_counter() - begin_s)

    def close(self) -> None:
        self.is_closed = True

    def _run_row(self, row: RowPlan) -> tuple[TokenResult, ...]:
        slots = self._slots(row)
        value = int(self._values[slots[row.num_computed - 1]]) if row.num_computed else 0
        for slot, token in zip(slots[row.num_computed :], row.tokens, strict=True):
            value = _chain(value, token)
            self._values[slot] = value
        return tuple(
            self._answer(output, slots[: row.num_computed + output.index + 1]) for output in row.outputs
        )

    def _slots(self, row: RowPlan) -> npt.NDArray[np.int64]:
        """(num_computed + num_new,) the slot of each place."""
        places = np.arange(row.num_computed + row.num_new)
        blocks = np.array(row.block_ids, dtype=np.int64)
        size = self._info.block_size
        return blocks[places // size] * size + places % size

    def _answer(self, output: OutputPlan, slots: npt.NDArray[np.int64]) -> TokenResult:
        weights = 2 * np.arange(len(slots), dtype=_U64) + _U64(1)  # so that two places swapped show
        digest = (self._values[slots] * weights).sum(dtype=_U64)
        ids = self._ids[: output.num_drawable or None]
        logits = _uniform(_mix(digest + ids)) * 8.0 - 4.0  # (V,), or as many as are drawable
        token = output.target if output.draw is None else _draw(logits, output.draw, ids)
        assert token is not None
        if output.num_top < 0:
            return TokenResult(token, 0.0, ())
        logprobs = logits - np.log(np.exp(logits).sum())
        best = np.argsort(-logprobs, kind="stable")[: output.num_top]
        return TokenResult(token, float(logprobs[token]), tuple((int(i), float(logprobs[i])) for i in best))


_MASK = 2**64 - 1


def _draw(logits: npt.NDArray[np.float64], draw: DrawPlan, ids: npt.NDArray[np.uint64]) -> int:
    biased = logits.copy()
    for token, bias in draw.logit_bias:
        biased[token] += bias
    if draw.temperature > 0:
        noise = _uniform(_mix(_mix(np.array([draw.seed], _U64) + _U64(draw.position)) + ids))
        biased = biased / draw.temperature - np.log(-np.log(noise + 1e-18))
    return int(np.argmax(biased))


def _chain(before: int, token: int) -> int:
    """The value of a place with this token after a place with that value."""
    value = (before + (token + 1) * 0x9E3779B97F4A7C15) & _MASK
    return ((value ^ (value >> 29)) * 0xBF58476D1CE4E5B9) & _MASK


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A one-to-one scramble of 64-bit numbers (the finaliser of splitmix64, Steele et al. 2014)."""
    values = (values ^ (values >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> _U64(27))) * _U64(0x94D049BB133111EB)
    return values ^ (values >> _U64(31))


def _uniform(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    return (values >> _U64(11)).astype(np.float64) / 2.0**53

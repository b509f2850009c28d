# SPDX-License-Identifier: Apache-2.0
"""The ops of one step, each computed in numpy the moment the forward pass calls it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.core.plan import RowPlan, StepPlan
from headrace.kernels.ref import ops as ref
from headrace.kernels.ref.ops import Floats, Ints
from headrace.models.ops import Activation, AttentionSpec, RopeSpec


@dataclass(frozen=True, slots=True)
class PackedRow:
    """Where one row's tokens lie among the step's, and its places in the cache."""

    span: slice  # of the step's T tokens
    positions: Ints  # (num_new,)
    block_ids: Ints  # (B,)


@dataclass(frozen=True, slots=True)
class PackedStep:
    tokens: Ints  # (T,)
    positions: Ints  # (T,)
    outputs: Ints  # (O,) among the step's T tokens
    rows: tuple[PackedRow, ...]


def pack(plan: StepPlan) -> PackedStep:
    """Rows one after the other."""
    starts = np.cumsum([0] + [row.num_new for row in plan.rows])
    rows = tuple(_pack_row(row, int(start)) for row, start in zip(plan.rows, starts, strict=False))
    outputs = [
        int(start) + output.index
        for row, start in zip(plan.rows, starts, strict=False)
        for output in row.outputs
    ]
    return PackedStep(
        tokens=np.array([token for row in plan.rows for token in row.tokens], dtype=np.int64),
        positions=np.concatenate([row.positions for row in rows]),
        outputs=np.array(outputs, dtype=np.int64),
        rows=rows,
    )


def _pack_row(row: RowPlan, start: int) -> PackedRow:
    return PackedRow(
        span=slice(start, start + row.num_new),
        positions=np.arange(row.num_computed, row.num_computed + row.num_new),
        block_ids=np.array(row.block_ids, dtype=np.int64),
    )


@dataclass(frozen=True, slots=True)
class EagerOps:
    """`headrace.models.ops.Ops` over float32 arrays."""

    step: PackedStep
    kv: Floats  # (L, 2, num_blocks, G, S, K): keys and values of each layer

    def embed(self, weight: Floats, scale: float) -> Floats:
        return ref.embed(weight, self.step.tokens, scale)

    def rms_norm(self, x: Floats, weight: Floats, eps: float) -> Floats:
        return ref.rms_norm(x, weight, eps)

    def head_norm(self, x: Floats, weight: Floats, num_heads: int, eps: float) -> Floats:
        return ref.head_norm(x, weight, num_heads, eps)

    def linear(self, x: Floats, weight: Floats, bias: Floats | None = None) -> Floats:
        return ref.linear(x, weight, bias)

    def rope(self, x: Floats, num_heads: int, spec: RopeSpec) -> Floats:
        frequencies = ref.rope_frequencies(spec.dim, spec.base, spec.freq_factors, spec.linear_scale)
        return ref.rope(
            x,
            self.step.positions,
            num_heads,
            frequencies,
            interleaved=spec.interleaved,
            attention_factor=spec.attention_factor,
        )

    def attention(self, q: Floats, k: Floats, v: Floats, layer: int, spec: AttentionSpec) -> Floats:
        mixed = np.empty_like(q)
        keys, values = self.kv[layer]
        for row in self.step.rows:
            ref.write_kv(keys, values, k[row.span], v[row.span], row.block_ids, row.positions)
            mixed[row.span] = ref.attend(
                q[row.span],
                keys,
                values,
                row.block_ids,
                row.positions,
                num_heads=spec.num_heads,
                scale=spec.scale,
                window=spec.window,
                cap=spec.softcap,
            )
        return mixed

    def gated(self, gate: Floats, up: Floats, activation: Activation) -> Floats:
        return ref.ACTIVATIONS[activation](gate) * up

    def add(self, x: Floats, y: Floats) -> Floats:
        return x + y

    def softcap(self, x: Floats, cap: float) -> Floats:
        return ref.softcap(x, cap)

    def select_outputs(self, x: Floats) -> Floats:
        return x[self.step.outputs]

# SPDX-License-Identifier: Apache-2.0
"""Loads a fused pass into the native program: takes each matrix once, gives values buffers that are reused
as soon as nothing reads them any more."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from headrace import _native
from headrace.kernels.ref.dequantize import dequantize
from headrace.models.ops import RopeSpec
from headrace.runner.fusion import (
    AddOp,
    AttentionOp,
    EmbedOp,
    FusedOp,
    FusedProgram,
    GatedPrologue,
    LinearOp,
    NormOp,
    NormPrologue,
    SelectOp,
    SoftcapOp,
    values_read,
    values_written,
)
from headrace.runner.packing import Packing
from headrace.weights.checkpoint import StoredTensor

_PROLOGUE_NONE, _PROLOGUE_NORM, _PROLOGUE_GATED = 0, 1, 2
_ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}


class ProgramBuilder:
    """Builds one `_native.Program`."""

    def __init__(self, kernels: str, team: _native.Team, fused: FusedProgram, packing: Packing) -> None:
        self.program = _native.Program(kernels, team, fused.widths[fused.logits])
        self._packing = packing
        self._fused = fused
        self._buffers: dict[int, int] = {}  # value -> buffer
        self._free: dict[int, list[int]] = {}  # width -> buffers
        self._matrices: dict[str, int] = {}
        self._vectors: dict[str, int] = {}
        self._ropes: dict[RopeSpec, int] = {}

    def build(self) -> _native.Program:
        """The tail, from SelectOp on, runs a few outputs at a time: its values are not kept in buffers of the
        body, and what it reads of the body stays as it is."""
        last_reader = {value: i for i, op in enumerate(self._fused.ops) for value in values_read(op)}
        for i, op in enumerate(self._fused.ops):
            self._add(op)
            for value in set(values_read(op)):
                if last_reader[value] == i and not isinstance(op, SelectOp):
                    self._free.setdefault(self._fused.widths[value], []).append(self._buffers[value])
        self.program.finish(self._buffers[self._fused.logits])
        return self.program

    def _add(self, op: FusedOp) -> None:
        if isinstance(op, SelectOp):
            self._free.clear()
        for value in values_written(op):
            self._buffers[value] = self._buffer(self._fused.widths[value])
        match op:
            case EmbedOp():
                rows, columns = op.weight.shape
                self.program.embed(
                    op.weight.format.gguf_id,
                    op.weight.data,
                    op.weight.data.size // rows,
                    columns,
                    op.scale,
                    self._buffers[op.out],
                )
            case LinearOp():
                self._add_linear(op)
            case NormOp():
                add_to = -1 if op.add_to is None else self._buffers[op.add_to]
                self.program.norm(
                    self._buffers[op.x], self._vector(op.weight), op.eps, self._buffers[op.out], add_to
                )
            case AttentionOp():
                self._add_attention(op)
            case AddOp():
                self.program.add(self._buffers[op.x], self._buffers[op.y], self._buffers[op.out])
            case SoftcapOp():
                self.program.softcap(self._buffers[op.x], op.cap, self._buffers[op.out])
            case SelectOp():
                self.program.select_outputs(self._buffers[op.x], self._buffers[op.out])

    def _add_linear(self, op: LinearOp) -> None:
        prologue, second, vector, eps, activation = _PROLOGUE_NONE, -1, -1, 0.0, 0
        if isinstance(op.prologue, NormPrologue):
            prologue, vector, eps = _PROLOGUE_NORM, self._vector(op.prologue.weight), op.prologue.eps
        elif isinstance(op.prologue, GatedPrologue):
            prologue, second = _PROLOGUE_GATED, self._buffers[op.prologue.up]
            activation = _ACTIVATIONS[op.prologue.activation]
        self.program.linear(
            prologue,
            self._buffers[op.x],
            second,
            vector,
            eps,
            activation,
            [self._matrix(product.weight) for product in op.products],
            [-1 if product.bias is None else self._vector(product.bias) for product in op.products],
            [self._buffers[product.out] for product in op.products],
            [-1 if product.residual is None else self._buffers[product.residual] for product in op.products],
        )

    def _add_attention(self, op: AttentionOp) -> None:
        self.program.attention(
            self._buffers[op.q],
            self._buffers[op.k],
            self._buffers[op.v],
            self._buffers[op.out],
            op.spec.num_heads,
            op.spec.num_kv_heads,
            op.spec.head_dim,
            op.spec.scale,
            op.spec.window or 0,
            op.spec.softcap or 0.0,
            op.layer,
            -1 if op.q_norm is None else self._vector(op.q_norm),
            -1 if op.k_norm is None else self._vector(op.k_norm),
            op.eps,
            -1 if op.rope is None else self._rope(op.rope),
        )

    def _buffer(self, width: int) -> int:
        free = self._free.get(width)
        return free.pop() if free else self.program.add_buffer(width)

    def _matrix(self, tensor: StoredTensor) -> int:
        if tensor.name not in self._matrices:
            self._matrices[tensor.name] = self.program.add_matrix(self._packing.matrix(tensor))
        return self._matrices[tensor.name]

    def _vector(self, tensor: StoredTensor) -> int:
        if tensor.name not in self._vectors:
            values = dequantize(tensor.format, tensor.data, tensor.num_elements)
            self._vectors[tensor.name] = self.program.add_vector(values)
        return self._vectors[tensor.name]

    def _rope(self, spec: RopeSpec) -> int:
        if spec not in self._ropes:
            self._ropes[spec] = self.program.add_rope(
                spec.dim, spec.interleaved, spec.attention_factor, rope_frequencies(spec)
            )
        return self._ropes[spec]


def rope_frequencies(spec: RopeSpec) -> npt.NDArray[np.float64]:
    """(dim / 2,) radians that a pair turns from one position to the next."""
    exponents = np.arange(0, spec.dim, 2, dtype=np.float64) / spec.dim
    frequencies = np.exp(-math.log(spec.base) * exponents) / spec.linear_scale
    if spec.freq_factors is not None:
        frequencies /= np.asarray(spec.freq_factors, dtype=np.float64)
    return frequencies

# SPDX-License-Identifier: Apache-2.0
"""The backend that defines what every other must compute: each op in numpy float32, weights expanded to
float32, K/V in float32 blocks. Slow; for tests and for machines to compare against."""

from __future__ import annotations

import time

import numpy as np

from headrace.core.plan import BackendInfo, OutputPlan, StepPlan, StepResult, TokenResult
from headrace.kernels.ref.dequantize import dequantize
from headrace.kernels.ref.ops import Floats
from headrace.kernels.ref.sampling import draw_token, log_probabilities
from headrace.models.registry import check_tensors, forward_of, spec_from_checkpoint
from headrace.models.spec import ModelSpec
from headrace.runner.backends.eager import EagerOps, pack
from headrace.runner.plan_check import check_plan
from headrace.runner.row_result import row_result
from headrace.weights.checkpoint import Checkpoint


def load_reference_backend(
    checkpoint: Checkpoint, *, max_model_len: int, num_blocks: int, block_size: int = 16
) -> ReferenceBackend:
    spec = spec_from_checkpoint(checkpoint)
    check_tensors(checkpoint, spec)
    info = BackendInfo(
        vocab_size=spec.vocab_size,
        max_model_len=max_model_len,
        block_size=block_size,
        num_blocks=num_blocks,
    )
    return ReferenceBackend(spec, ExpandedWeights(checkpoint), info)


class ExpandedWeights:
    """A checkpoint's tensors as float32 arrays, each expanded when it is first asked for."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._expanded: dict[str, Floats] = {}

    def __getitem__(self, name: str) -> Floats:
        if name not in self._expanded:
            stored = self._checkpoint.tensors[name]
            flat = dequantize(stored.format, stored.data, stored.num_elements)
            self._expanded[name] = flat.reshape(stored.shape)
        return self._expanded[name]

    def get(self, name: str) -> Floats | None:
        return self[name] if name in self._checkpoint.tensors else None


class ReferenceBackend:
    """A `core.plan.Backend`. Cache places start as NaN, so that reading one never written shows."""

    def __init__(self, spec: ModelSpec, weights: ExpandedWeights, info: BackendInfo) -> None:
        self._spec = spec
        self._weights = weights
        self._info = info
        self._forward = forward_of(spec.arch)
        shape = (spec.num_layers, 2, info.num_blocks, spec.num_kv_heads, info.block_size, spec.head_dim)
        self._kv: Floats = np.full(shape, np.nan, dtype=np.float32)

    @property
    def info(self) -> BackendInfo:
        return self._info

    def execute(self, plan: StepPlan) -> StepResult:
        started = time.perf_counter()
        logits = iter(self.logits(plan))
        rows = tuple(
            row_result(row.sequence_id, tuple(_token_result(next(logits), output) for output in row.outputs))
            for row in plan.rows
        )
        return StepResult(rows=rows, native_s=time.perf_counter() - started)

    def logits(self, plan: StepPlan) -> Floats:
        """(O, V) for every output of the plan in order, and the K/V of its tokens stored; nothing drawn."""
        check_plan(plan, self._info)
        for copy in plan.copies:
            self._kv[:, :, copy.target] = self._kv[:, :, copy.source]
        if not plan.rows:
            return np.empty((0, self._info.vocab_size), dtype=np.float32)
        return self._forward(EagerOps(pack(plan), self._kv), self._spec, self._weights)

    def close(self) -> None:
        self._kv = np.empty((0,), dtype=np.float32)


def _token_result(logits: Floats, output: OutputPlan) -> TokenResult:
    """logits (V,)."""
    if output.num_drawable:
        logits = logits[: output.num_drawable]
    token = draw_token(logits, output.draw) if output.draw is not None else output.target
    assert token is not None
    if output.num_top < 0:
        return TokenResult(token=token, logprob=0.0, top=())
    logprob, top = log_probabilities(logits, token, output.num_top)
    return TokenResult(token=token, logprob=logprob, top=top)

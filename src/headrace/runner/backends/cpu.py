# SPDX-License-Identifier: Apache-2.0
"""The CPU backend: the forward pass recorded at load, replayed natively a step at a time without the GIL.
Keys and values are f16 in paged blocks."""

from __future__ import annotations

import logging
import time

import numpy as np

from headrace import _native
from headrace.core.errors import ConfigError
from headrace.core.plan import BackendInfo, RowResult, StepPlan, StepResult, TokenResult
from headrace.kernels.cpu.tables import choose, kernel_tables
from headrace.models.registry import check_tensors, forward_of, spec_from_checkpoint
from headrace.models.spec import ModelSpec
from headrace.runner.fusion import fuse
from headrace.runner.native_program import ProgramBuilder
from headrace.runner.packing import KeptPacking, Packing
from headrace.runner.plan_check import check_plan
from headrace.runner.recorder import Recorder
from headrace.runner.row_result import row_result
from headrace.runner.step_arrays import flatten
from headrace.weights.checkpoint import Checkpoint, StoredTensor
from headrace.weights.packed.folder import PackedFolder
from headrace.weights.packed.later import Later

BLOCK_SIZE: int = _native.BLOCK_SIZE
MAX_TOP: int = _native.MAX_TOP

log = logging.getLogger(__name__)


def kv_bytes_per_block(spec: ModelSpec) -> int:
    return spec.num_layers * 2 * spec.num_kv_heads * spec.head_dim * BLOCK_SIZE * 2


def load_cpu_backend(
    checkpoint: Checkpoint,
    *,
    num_threads: int,
    max_model_len: int,
    kv_cache_bytes: int,
    kernels: str = "auto",
    packed: PackedFolder | None = None,
) -> CpuBackend:
    """Pack the checkpoint's weights and record its forward pass.

    Args:
        kernels: a table's name, or `auto` for the fastest that this CPU runs.
        packed: where packed weights are found and kept; None: they are packed at every load.

    Raises:
        ModelFileError: tensors that are missing or have wrong shapes.
        ConfigError: kernels that do not run here, or memory for less than one block.
    """
    choice = choose(kernels, kernel_tables())
    log.info("kernels = %s (%s)", choice.table, choice.reason)
    if kernels == "auto" and choice.table == "reference":
        log.warning("running on the portable reference kernels, which are slow: %s", choice.reason)
    spec = spec_from_checkpoint(checkpoint)
    check_tensors(checkpoint, spec)
    num_blocks = kv_cache_bytes // kv_bytes_per_block(spec)
    if num_blocks < 1:
        raise ConfigError(
            f"kv_cache_bytes={kv_cache_bytes} is less than one KV block ({kv_bytes_per_block(spec)} bytes)"
        )
    recorder = Recorder()
    logits = forward_of(spec.arch)(recorder, spec, _Tensors(checkpoint))
    team = _native.Team(num_threads)
    packing = Packing(team) if packed is None else KeptPacking(team, checkpoint, packed)
    program = ProgramBuilder(choice.table, team, fuse(recorder.nodes, logits), packing).build()
    keeping = packing.keep() if isinstance(packing, KeptPacking) else None
    info = BackendInfo(
        vocab_size=spec.vocab_size,
        max_model_len=max_model_len,
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        is_batch_invariant=True,
    )
    return CpuBackend(program, spec, info, packing.num_bytes, choice.table, keeping)


class _Tensors:
    """A checkpoint's tensors as the weight handles of a recording."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def __getitem__(self, name: str) -> StoredTensor:
        return self._checkpoint.tensors[name]

    def get(self, name: str) -> StoredTensor | None:
        return self._checkpoint.tensors.get(name)


class CpuBackend:
    """A `core.plan.Backend`.

    Attributes:
        weight_bytes_per_token: packed bytes that a step reads at least once, whatever its rows.
        kernels: the name of the kernel table in use.
        keeping: what writes the packed weights to the disk, where that is to be done.
    """

    def __init__(
        self,
        program: _native.Program,
        spec: ModelSpec,
        info: BackendInfo,
        weight_bytes: int,
        kernels: str,
        keeping: Later | None = None,
    ) -> None:
        self._program: _native.Program | None = program
        self._info = info
        self.weight_bytes_per_token = weight_bytes
        self.kernels = kernels
        self.keeping = keeping
        # (L, 2, num_blocks, G * K * S) f16; zero pages are only taken from the system when written.
        self._kv = np.zeros(info.num_blocks * kv_bytes_per_block(spec) // 2, dtype=np.uint16)
        self._kv_halves = spec.num_kv_heads * spec.head_dim * BLOCK_SIZE  # of a layer's block

    @property
    def info(self) -> BackendInfo:
        return self._info

    def execute(self, plan: StepPlan) -> StepResult:
        if self._program is None:
            raise RuntimeError("the backend is closed")
        check_plan(plan, self._info)
        blocks = self._kv.reshape(-1, self._info.num_blocks, self._kv_halves)  # (2 L, num_blocks, G * K * S)
        for copy in plan.copies:
            blocks[:, copy.target] = blocks[:, copy.source]
        if not plan.rows:
            return StepResult(rows=(), native_s=0.0)
        arrays = flatten(plan)
        tokens = np.empty(arrays.num_outputs, dtype=np.int32)
        logprobs = np.empty(arrays.num_outputs, dtype=np.float32)
        top = np.empty(arrays.num_outputs * MAX_TOP, dtype=np.int32)
        top_logprobs = np.empty(arrays.num_outputs * MAX_TOP, dtype=np.float32)
        started = time.perf_counter()
        self._program.run(
            arrays.tokens,
            arrays.row_begin,
            arrays.num_computed,
            arrays.block_begin,
            arrays.blocks,
            arrays.outputs,
            arrays.bias_ids,
            arrays.bias,
            arrays.history,
            self._kv,
            self._info.num_blocks,
            tokens,
            logprobs,
            top,
            top_logprobs,
        )
        native_s = time.perf_counter() - started
        if any(output.num_top >= 0 for row in plan.rows for output in row.outputs):
            rows = _rows_with_logprobs(
                plan, tokens.tolist(), logprobs.tolist(), top.tolist(), top_logprobs.tolist()
            )
        else:
            rows = _rows(plan, tokens.tolist())
        return StepResult(rows=rows, native_s=native_s)

    def close(self) -> None:
        """Give weights and K/V back; weights that are still to be kept on the disk, as soon as they are."""
        self._program = None
        if self.keeping is not None:
            self.keeping.hurry()
        self._kv = np.zeros(0, dtype=np.uint16)


def _rows(plan: StepPlan, tokens: list[int]) -> tuple[RowResult, ...]:
    drawn = iter(tokens)
    return tuple(
        row_result(row.sequence_id, tuple(TokenResult(next(drawn), 0.0, ()) for _ in row.outputs))
        for row in plan.rows
    )


def _rows_with_logprobs(
    plan: StepPlan, tokens: list[int], logprobs: list[float], top: list[int], top_logprobs: list[float]
) -> tuple[RowResult, ...]:
    rows = []
    place = 0
    for row in plan.rows:
        outputs = []
        for output in row.outputs:
            begin, end = place * MAX_TOP, place * MAX_TOP + max(0, output.num_top)
            pairs = zip(top[begin:end], top_logprobs[begin:end], strict=True)
            listed = tuple(pair for pair in pairs if pair[0] >= 0)  # fewer than asked for have a number
            outputs.append(TokenResult(tokens[place], logprobs[place], listed))
            place += 1
        rows.append(row_result(row.sequence_id, tuple(outputs)))
    return tuple(rows)

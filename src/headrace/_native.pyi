# SPDX-License-Identifier: Apache-2.0
"""Types of the native extension (native/core/bindings.cpp). Arrays are one-dimensional and contiguous."""

from collections.abc import Sequence
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

MAX_TOP: int
BLOCK_SIZE: int
OUTPUT_SPEC_BYTES: int
PACKED_LAYOUT: int
testing: ModuleType
timing: _Timing

def kernel_tables() -> list[str]: ...
def kernel_table_lacks() -> list[tuple[str, str]]: ...
def read_bandwidth(num_threads: int, bytes: int, seconds: float) -> float: ...
def pack(gguf_id: int, data: NDArray[np.uint8], rows: int, columns: int, team: Team) -> PackedMatrix: ...
def packed_before(
    gguf_id: int, data: NDArray[np.uint8], rows: int, columns: int, multiplier: float
) -> PackedMatrix: ...

class _Timing:  # a submodule (native/core/bind_bench.cpp)
    def product(
        self,
        kernels: str,
        matrices: Sequence[PackedMatrix],
        tokens: int,
        team: Team,
        seconds: float,
        fewest_calls: int,
    ) -> list[float]: ...
    def attention(
        self,
        kernels: str,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        context: int,
        tokens: int,
        copies: int,
        team: Team,
        seconds: float,
        fewest_calls: int,
    ) -> list[float]: ...
    def rows(
        self, kernels: str, name: str, width: int, tokens: int, team: Team, seconds: float, fewest_calls: int
    ) -> list[float]: ...
    def byte_peak(self, kernels: str, team: Team, seconds: float) -> tuple[str, float]: ...

class Team:
    def __init__(self, num_threads: int) -> None: ...
    @property
    def size(self) -> int: ...

class PackedMatrix:
    @property
    def num_bytes(self) -> int: ...
    @property
    def kind(self) -> int: ...
    @property
    def multiplier(self) -> float: ...
    @property
    def data(self) -> NDArray[np.uint8]: ...  # (num_bytes,) read-only view

class Program:
    def __init__(self, kernels: str, team: Team, vocab_size: int) -> None: ...
    def add_buffer(self, width: int) -> int: ...
    def add_rope(
        self, dim: int, interleaved: bool, attention_factor: float, frequency: NDArray[np.float64]
    ) -> int: ...
    def add_vector(self, weight: NDArray[np.float32]) -> int: ...
    def add_matrix(self, matrix: PackedMatrix) -> int: ...
    def embed(
        self, gguf_id: int, table: NDArray[np.uint8], row_bytes: int, width: int, scale: float, out: int
    ) -> None: ...
    def norm(self, input: int, vector: int, eps: float, out: int, add_to: int) -> None: ...
    def linear(
        self,
        prologue: int,
        input: int,
        second: int,
        vector: int,
        eps: float,
        activation: int,
        matrices: Sequence[int],
        biases: Sequence[int],
        outs: Sequence[int],
        residuals: Sequence[int],
    ) -> None: ...
    def attention(
        self,
        q: int,
        k: int,
        v: int,
        out: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        window: int,
        softcap: float,
        layer: int,
        q_norm: int,
        k_norm: int,
        eps: float,
        rope: int,
    ) -> None: ...
    def add(self, x: int, y: int, out: int) -> None: ...
    def softcap(self, x: int, cap: float, out: int) -> None: ...
    def select_outputs(self, input: int, out: int) -> None: ...
    def finish(self, logits: int) -> None: ...
    def run(
        self,
        tokens: NDArray[np.int32],
        row_begin: NDArray[np.int64],
        num_computed: NDArray[np.int64],
        block_begin: NDArray[np.int64],
        blocks: NDArray[np.int32],
        outputs: NDArray[np.uint8],
        bias_ids: NDArray[np.int32],
        bias: NDArray[np.float32],
        history: NDArray[np.int32],
        kv: NDArray[np.uint16],
        num_blocks: int,
        result_token: NDArray[np.int32],
        result_logprob: NDArray[np.float32],
        result_top: NDArray[np.int32],
        result_top_logprob: NDArray[np.float32],
    ) -> None: ...

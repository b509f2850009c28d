# SPDX-License-Identifier: Apache-2.0
"""What `headrace bench kernels` times: shapes of real models, and each kernel at them as one case."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

FLOAT_BYTES, HALF_BYTES = 4, 2
ROW_KERNELS = ("rms_norm", "quantize", "gated")


@dataclass(frozen=True, slots=True)
class ModelShape:
    name: str
    hidden: int
    ffn: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int

    @property
    def matrices(self) -> tuple[tuple[str, int, int], ...]:
        """What a layer multiplies with, and the head: name, N, K."""
        heads = self.num_heads * self.head_dim
        return (
            ("qkv", heads + 2 * self.num_kv_heads * self.head_dim, self.hidden),
            ("o", self.hidden, heads),
            ("gate+up", 2 * self.ffn, self.hidden),
            ("down", self.hidden, self.ffn),
            ("head", self.vocab, self.hidden),
        )


MODELS = {
    "135m": ModelShape("135m", 576, 1536, 9, 3, 64, 49152),  # SmolLM2
    "1b": ModelShape("1b", 2048, 8192, 32, 8, 64, 128256),  # Llama 3.2
    "8b": ModelShape("8b", 4096, 14336, 32, 8, 128, 128256),  # Llama 3.1
}


@dataclass(frozen=True, slots=True)
class StoredAs:
    """A format that weights are stored in, of some packed kind."""

    name: str
    qblock_size: int
    is_float: bool


class Timer(Protocol):
    """Seconds of each of several calls; the first, which warms up, is left out."""

    def product(self, format_name: str, rows: int, columns: int, tokens: int) -> tuple[list[float], int]: ...
    def attention(
        self, num_heads: int, num_kv_heads: int, head_dim: int, context: int, tokens: int
    ) -> list[float]: ...
    def rows(self, name: str, width: int, tokens: int) -> list[float]: ...


@dataclass(frozen=True, slots=True)
class Called:
    """What came out of a case: seconds of each call, and what one call reads, writes and computes."""

    seconds: list[float]
    num_bytes: int
    multiply_adds: int


@dataclass(frozen=True, slots=True)
class ProductCase:
    model: str
    name: str
    stored: StoredAs
    rows: int
    columns: int
    tokens: int

    kernel = "matmul"
    from_memory = True

    @property
    def kind(self) -> str:
        return self.stored.name

    @property
    def of_bytes(self) -> bool:
        return not self.stored.is_float

    @property
    def shape(self) -> str:
        return f"{self.name} {self.rows} x {self.columns}"

    def run(self, timer: Timer) -> Called:
        seconds, weight_bytes = timer.product(self.stored.name, self.rows, self.columns, self.tokens)
        input_bytes = self.columns * (1 if self.of_bytes else FLOAT_BYTES)
        num_bytes = weight_bytes + self.tokens * (input_bytes + self.rows * FLOAT_BYTES)
        return Called(seconds, num_bytes, self.rows * self.columns * self.tokens)


@dataclass(frozen=True, slots=True)
class AttentionCase:
    model: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context: int
    tokens: int

    kernel = "attention"
    kind = "f16"
    from_memory = True
    of_bytes = False

    @property
    def shape(self) -> str:
        return f"{self.num_heads}/{self.num_kv_heads} x {self.head_dim} over {self.context}"

    def run(self, timer: Timer) -> Called:
        seconds = timer.attention(self.num_heads, self.num_kv_heads, self.head_dim, self.context, self.tokens)
        seen = sum(range(self.context - self.tokens + 1, self.context + 1))
        kv_bytes = 2 * self.num_kv_heads * self.head_dim * self.context * HALF_BYTES
        own_bytes = 2 * self.tokens * self.num_heads * self.head_dim * FLOAT_BYTES
        return Called(seconds, kv_bytes + own_bytes, 2 * self.num_heads * self.head_dim * seen)


@dataclass(frozen=True, slots=True)
class RowsCase:
    """Their input is what the op before has just written, so it is not from memory."""

    model: str
    kernel: str
    width: int
    tokens: int

    kind = "f32"
    from_memory = False
    of_bytes = False

    @property
    def shape(self) -> str:
        return str(self.width)

    def run(self, timer: Timer) -> Called:
        per_number = {"rms_norm": 3 * FLOAT_BYTES, "gated": 3 * FLOAT_BYTES, "quantize": FLOAT_BYTES + 1}
        num_bytes = self.width * self.tokens * per_number[self.kernel]
        return Called(timer.rows(self.kernel, self.width, self.tokens), num_bytes, 0)


Case = ProductCase | AttentionCase | RowsCase


@dataclass(frozen=True, slots=True)
class CaseSizes:
    tokens: tuple[int, ...]
    contexts: tuple[int, ...]
    tile_tokens: int  # of a prompt, against each context but the longest
    with_head: bool


FULL = CaseSizes(tokens=(1, 4, 16, 64, 512), contexts=(1024, 8192, 32768), tile_tokens=64, with_head=True)
QUICK = CaseSizes(tokens=(1, 16), contexts=(1024, 2048), tile_tokens=16, with_head=False)


def cases_of(models: Sequence[ModelShape], formats: Sequence[StoredAs], sizes: CaseSizes) -> Iterator[Case]:
    """Those that share weights follow each other."""
    for model in models:
        for stored in formats:
            for name, rows, columns in model.matrices:
                if columns % max(stored.qblock_size, 32):
                    continue  # no file has it so
                if name == "head" and (stored.is_float or not sizes.with_head):
                    continue
                for tokens in sizes.tokens:
                    yield ProductCase(model.name, name, stored, rows, columns, tokens)
        attention = (model.num_heads, model.num_kv_heads, model.head_dim)
        for context in sizes.contexts:
            yield AttentionCase(model.name, *attention, context, 1)
        for context in sizes.contexts[:-1]:
            yield AttentionCase(model.name, *attention, context, sizes.tile_tokens)
        for kernel in ROW_KERNELS:
            for tokens in sizes.tokens:
                yield RowsCase(model.name, kernel, model.ffn if kernel == "gated" else model.hidden, tokens)

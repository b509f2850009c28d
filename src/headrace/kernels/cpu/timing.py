# SPDX-License-Identifier: Apache-2.0
"""Single kernels of one table, timed in native code on all threads: on random weights that come from memory,
as a model's do. Knows nothing of models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace._native import PackedMatrix, Team, pack, timing
from headrace.core.errors import ConfigError
from headrace.weights.formats import BY_NAME, FORMATS, QuantFormat

# One format of each packed kind is timed, the first of these that has it, then whichever has it.
PREFERRED = ("Q4_1", "Q8_0", "Q5_1", "Q6_K", "Q2_K", "F16", "BF16", "F32")
PERIOD = 1_000_003  # bytes after which random weights repeat; odd, so that rows differ
HALF_BYTES = 2
RANDOM_BYTES = (0x20, 0x30)  # whatever number these are part of is small and finite, a scale plausible


class KernelTimer:
    """
    Args:
        kernels: the name of a table that runs here.
        least_bytes: of the weights or keys and values that calls read by turns; more than the caches hold.
        seconds: for the calls of one measurement, which are `fewest_calls` at least.
    """

    def __init__(
        self, kernels: str, num_threads: int, *, least_bytes: int, seconds: float, fewest_calls: int
    ) -> None:
        self.kernels, self.num_threads = kernels, num_threads
        self._team = Team(num_threads)
        self._least_bytes = least_bytes
        self._seconds, self._fewest_calls = seconds, fewest_calls
        self._shape: tuple[str, int, int] | None = None
        self._weights: tuple[PackedMatrix, ...] = ()

    def formats(self, names: Sequence[str] | None) -> tuple[QuantFormat, ...]:
        """Those of these names; None: one of each packed kind. Raises ConfigError for a name of none."""
        if names is not None:
            if unknown := [name for name in names if name not in BY_NAME]:
                raise ConfigError(f"{unknown[0]!r} is no format; these are: {', '.join(BY_NAME)}")
            return tuple(BY_NAME[name] for name in names)
        preferred = [BY_NAME[name] for name in PREFERRED]
        of_kind: dict[int, QuantFormat] = {}
        for row in [*preferred, *(row for row in FORMATS if row not in preferred)]:
            of_kind.setdefault(self._packed(row, 8, 256).kind, row)
        return tuple(of_kind.values())

    def byte_peak(self, seconds: float) -> tuple[str, float] | None:
        """The table's chain of multiply-adds of bytes, and how many a second. None: it has none."""
        name, multiply_adds = timing.byte_peak(self.kernels, self._team, seconds)
        return (name, multiply_adds) if name else None

    def product(self, format_name: str, rows: int, columns: int, tokens: int) -> tuple[list[float], int]:
        """Seconds of each call, and the bytes of the packed matrix."""
        wanted = (format_name, rows, columns)
        if wanted != self._shape:
            self._shape, self._weights = wanted, ()  # the old ones first, memory may hold no two of them
            self._weights = self._random_weights(BY_NAME[format_name], rows, columns)
        seconds = timing.product(
            self.kernels, self._weights, tokens, self._team, self._seconds, self._fewest_calls
        )
        return seconds, self._weights[0].num_bytes

    def attention(
        self, num_heads: int, num_kv_heads: int, head_dim: int, context: int, tokens: int
    ) -> list[float]:
        """Seconds of each call for the last `tokens` of `context` positions."""
        num_bytes = 2 * HALF_BYTES * num_kv_heads * head_dim * context
        return timing.attention(
            self.kernels,
            num_heads,
            num_kv_heads,
            head_dim,
            context,
            tokens,
            -(-self._least_bytes // num_bytes),
            self._team,
            self._seconds,
            self._fewest_calls,
        )

    def rows(self, name: str, width: int, tokens: int) -> list[float]:
        """Seconds of each call of "rms_norm", "quantize" or "gated" for all tokens."""
        return timing.rows(self.kernels, name, width, tokens, self._team, self._seconds, self._fewest_calls)

    def _random_weights(self, row: QuantFormat, rows: int, columns: int) -> tuple[PackedMatrix, ...]:
        first = self._packed(row, rows, columns)
        num_others = -(-self._least_bytes // first.num_bytes) - 1
        return (first, *(self._packed(row, rows, columns) for _ in range(num_others)))

    def _packed(self, row: QuantFormat, rows: int, columns: int) -> PackedMatrix:
        low, high = RANDOM_BYTES
        size = row.num_bytes(rows * columns)
        some = np.random.default_rng(0).integers(low, high, min(size, PERIOD), dtype=np.uint8)
        return pack(row.gguf_id, np.resize(some, size), rows, columns, self._team)

# SPDX-License-Identifier: Apache-2.0
"""The table of tensor formats. Adding a format adds a row here, a reference kernel and an error budget."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QuantFormat:
    """A way to store numbers: `qblock_size` of them in `qblock_bytes`. `gguf_id` is ggml's type number."""

    name: str
    gguf_id: int
    qblock_size: int
    qblock_bytes: int

    def num_bytes(self, num_elements: int) -> int:
        return num_elements // self.qblock_size * self.qblock_bytes

    @property
    def is_float(self) -> bool:
        return self.qblock_size == 1


FORMATS: tuple[QuantFormat, ...] = (
    QuantFormat("F32", 0, 1, 4),
    QuantFormat("F16", 1, 1, 2),
    QuantFormat("BF16", 30, 1, 2),
    QuantFormat("Q4_0", 2, 32, 18),
    QuantFormat("Q4_1", 3, 32, 20),
    QuantFormat("Q5_0", 6, 32, 22),
    QuantFormat("Q5_1", 7, 32, 24),
    QuantFormat("Q8_0", 8, 32, 34),
    QuantFormat("Q2_K", 10, 256, 84),
    QuantFormat("Q3_K", 11, 256, 110),
    QuantFormat("Q4_K", 12, 256, 144),
    QuantFormat("Q5_K", 13, 256, 176),
    QuantFormat("Q6_K", 14, 256, 210),
    QuantFormat("IQ4_NL", 20, 32, 18),
    QuantFormat("IQ4_XS", 23, 256, 136),
    QuantFormat("MXFP4", 39, 32, 17),
)

BY_NAME = {row.name: row for row in FORMATS}
BY_GGUF_ID = {row.gguf_id: row for row in FORMATS}

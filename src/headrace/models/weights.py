# SPDX-License-Identifier: Apache-2.0
"""How a forward pass asks for weights: by GGUF name. What a handle is, only the backend knows."""

from __future__ import annotations

from typing import Protocol, TypeVar

Handle = TypeVar("Handle", covariant=True)


class Weights(Protocol[Handle]):
    def __getitem__(self, name: str) -> Handle:
        """The handle of a tensor that the architecture cannot do without."""
        ...

    def get(self, name: str) -> Handle | None:
        """The handle of an optional tensor, None where the file has none."""
        ...

# SPDX-License-Identifier: Apache-2.0
"""What a user may choose about serving a model. Frozen; None means "work it out", which `core.resolve`
does once, giving a reason for each derived value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from headrace.core.errors import ConfigError

BackendName = Literal["cpu", "reference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The limits of one step."""

    max_num_seqs: int = 16  # sequences that run at once; more wait their turn
    # Tokens a step computes at most. It bounds how long a long prompt can hold up everybody's next token.
    max_num_batched_tokens: int = 512

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise ConfigError(f"max_num_seqs must be at least 1, got {self.max_num_seqs}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens must be at least max_num_seqs, so that every running sequence can "
                f"move on in a step, got {self.max_num_batched_tokens} < {self.max_num_seqs}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """How one model is loaded and run."""

    backend: BackendName = "cpu"  # "reference" is the numpy definition: slow, for checking
    num_threads: int | None = None  # None: one for each physical core this process may use
    # Tokens of prompt and output together; None: what model and memory allow.
    max_model_len: int | None = None
    kv_cache_bytes: int | None = None  # None: a quarter of the free memory, or less if less can be used
    chat_template: str | None = None  # Jinja source in place of the model's own
    engine: EngineConfig = field(default_factory=EngineConfig)  # the limits of one step

    def __post_init__(self) -> None:
        if self.backend not in ("cpu", "reference"):
            raise ConfigError(f"backend must be 'cpu' or 'reference', got {self.backend!r}")
        for name in ("num_threads", "max_model_len", "kv_cache_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")

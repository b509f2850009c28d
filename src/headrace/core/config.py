# SPDX-License-Identifier: Apache-2.0
"""What a user may choose about serving a model. Frozen; None means "work it out", which `core.resolve`
does once, giving a reason for each derived value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from headrace.core.errors import ConfigError

BackendName = Literal["cpu", "reference"]
PolicyName = Literal["fcfs", "priority", "fair", "deadline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Who is served when, and the limits of one step."""

    max_num_seqs: int = 16  # sequences that run at once; more wait their turn
    max_num_batched_tokens: int = 512  # tokens a step computes at most, whatever its time
    # Prompts are cut into chunks so that no running answer waits longer than this for its next token, in
    # milliseconds. The number of tokens follows from measured step times.
    max_itl_ms: float = 100.0
    max_num_queued_reqs: int | None = None  # sequences that may wait; more are refused. None: no limit
    max_num_queued_tokens: int | None = None  # prompt tokens that may wait. None: no limit
    scheduling_policy: PolicyName = "fcfs"  # who goes first, see engine/policy.py
    tenant_weights: tuple[tuple[str, float], ...] = ()  # for the fair policy; who is not named has 1
    enable_prefix_caching: bool = True  # keep K/V of what was computed for prompts that begin alike

    def __post_init__(self) -> None:
        if self.scheduling_policy not in get_args(PolicyName):
            raise ConfigError(
                f"scheduling_policy must be one of {', '.join(get_args(PolicyName))}, "
                f"got {self.scheduling_policy!r}"
            )
        if not 0 < self.max_itl_ms < float("inf"):
            raise ConfigError(f"max_itl_ms must be a positive number of milliseconds, got {self.max_itl_ms}")
        for name in ("max_num_queued_reqs", "max_num_queued_tokens"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"{name} must be at least 0, got {value}")
        for tenant, weight in self.tenant_weights:
            if not 0 < weight < float("inf"):
                raise ConfigError(f"the weight of a tenant must be positive, got {weight} for {tenant!r}")
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
    # Keep the weights as they are packed for this CPU in HEADRACE_HOME, so that the next start packs nothing.
    packed_cache: bool = True
    chat_template: str | None = None  # Jinja source in place of the model's own
    engine: EngineConfig = field(default_factory=EngineConfig)  # the limits of one step

    def __post_init__(self) -> None:
        if self.backend not in ("cpu", "reference"):
            raise ConfigError(f"backend must be 'cpu' or 'reference', got {self.backend!r}")
        for name in ("num_threads", "max_model_len", "kv_cache_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")

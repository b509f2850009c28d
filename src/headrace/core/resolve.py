# SPDX-License-Identifier: Apache-2.0
"""From what a user chose to what is used: every value that was left open is worked out here, once, with
its reason. Nothing writes a configuration after this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.core.config import ModelConfig
from headrace.core.errors import ConfigError
from headrace.core.machine import Machine

T = TypeVar("T")

BLOCK_SIZE = 16  # token places in a KV block
MAX_THREADS_PER_CORE = 8  # far beyond any use; a hundred take minutes for a token


@dataclass(frozen=True, slots=True)
class Resolved(Generic[T]):
    value: T
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What of a model bears on these choices."""

    context_length: int  # tokens the model was made for
    kv_bytes_per_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    num_threads: Resolved[int]
    max_model_len: Resolved[int]
    kv_cache_bytes: Resolved[int]
    num_blocks: int  # that fit into kv_cache_bytes

    def lines(self) -> list[str]:
        """One line a value, for a log."""
        named = {
            "num_threads": self.num_threads,
            "max_model_len": self.max_model_len,
            "kv_cache_bytes": self.kv_cache_bytes,
        }
        return [f"{name} = {resolved.value} ({resolved.reason})" for name, resolved in named.items()]


def resolve(config: ModelConfig, shape: ModelShape, machine: Machine) -> ResolvedConfig:
    """Raises ConfigError where what was asked contradicts the model, the memory or itself."""
    allowance = _kv_allowance(config, machine)
    max_model_len = _max_model_len(config, shape, allowance)
    kv_cache_bytes = _kv_cache_bytes(config, shape, allowance, max_model_len.value)
    return ResolvedConfig(
        num_threads=_num_threads(config, machine),
        max_model_len=max_model_len,
        kv_cache_bytes=kv_cache_bytes,
        num_blocks=kv_cache_bytes.value // (BLOCK_SIZE * shape.kv_bytes_per_token),
    )


def _num_threads(config: ModelConfig, machine: Machine) -> Resolved[int]:
    if config.num_threads is not None:
        if config.num_threads > MAX_THREADS_PER_CORE * machine.num_cores:
            raise ConfigError(
                f"num_threads = {config.num_threads} is too many for {machine.num_cores} cores: they would "
                f"only wait for each other. Leave it out for one a core"
            )
        return Resolved(config.num_threads, "as asked")
    return Resolved(machine.num_cores, "physical cores this process may use")


def _kv_allowance(config: ModelConfig, machine: Machine) -> Resolved[int]:
    if config.kv_cache_bytes is not None:
        return Resolved(config.kv_cache_bytes, "as asked")
    quarter = machine.available_bytes // 4
    return Resolved(quarter, f"a quarter of {machine.available_bytes} bytes: {machine.memory_source}")


def _max_model_len(config: ModelConfig, shape: ModelShape, allowance: Resolved[int]) -> Resolved[int]:
    num_places = allowance.value // (BLOCK_SIZE * shape.kv_bytes_per_token) * BLOCK_SIZE
    if num_places == 0:
        raise ConfigError(
            f"kv_cache_bytes = {allowance.value} ({allowance.reason}) holds no block of {BLOCK_SIZE} tokens, "
            f"which takes {BLOCK_SIZE * shape.kv_bytes_per_token} bytes"
        )
    if config.max_model_len is None:
        if shape.context_length <= num_places:
            return Resolved(shape.context_length, "the model's context length")
        return Resolved(num_places, f"what kv_cache_bytes holds; the model has {shape.context_length}")
    if config.max_model_len > shape.context_length:
        raise ConfigError(
            f"max_model_len = {config.max_model_len} is more than the model's context length, "
            f"{shape.context_length}"
        )
    if config.max_model_len > num_places:
        needed = -(-config.max_model_len // BLOCK_SIZE) * BLOCK_SIZE * shape.kv_bytes_per_token
        raise ConfigError(
            f"max_model_len = {config.max_model_len} needs kv_cache_bytes of at least {needed}, "
            f"but it is {allowance.value} ({allowance.reason})"
        )
    return Resolved(config.max_model_len, "as asked")


def _kv_cache_bytes(
    config: ModelConfig, shape: ModelShape, allowance: Resolved[int], max_model_len: int
) -> Resolved[int]:
    if config.kv_cache_bytes is not None:
        return allowance
    num_blocks = config.engine.max_num_seqs * -(-max_model_len // BLOCK_SIZE)
    most = num_blocks * BLOCK_SIZE * shape.kv_bytes_per_token
    if most < allowance.value:
        return Resolved(
            most, f"max_num_seqs {config.engine.max_num_seqs} sequences of {max_model_len} tokens fill it"
        )
    return allowance

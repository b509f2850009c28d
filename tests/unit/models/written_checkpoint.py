# SPDX-License-Identifier: Apache-2.0
"""Checkpoints made of metadata and shapes alone, for tests of what is read from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from headrace.weights.checkpoint import StoredTensor
from headrace.weights.formats import BY_NAME


@dataclass(frozen=True)
class WrittenCheckpoint:
    metadata: Mapping[str, object]
    tensors: Mapping[str, StoredTensor] = field(default_factory=dict)
    path: Path = Path("written")


def tensor(name: str, *shape: int, values: np.ndarray | None = None) -> StoredTensor:
    data = np.zeros(0, np.float32) if values is None else values.astype(np.float32)
    return StoredTensor(name, shape, BY_NAME["F32"], data.view(np.uint8), Path("written"))


def gguf(arch: str, *extra: StoredTensor, **changes: object) -> WrittenCheckpoint:
    """A small valid file of this architecture; `changes` are keys with `__` for `.`, None takes one away."""
    sizes: dict[str, object] = {
        "context_length": 256,
        "block_count": 7,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    if arch == "gemma3":
        sizes |= {"attention.sliding_window": 8, "attention.key_length": 32, "attention.value_length": 32}
    sizes |= {key.replace("__", "."): value for key, value in changes.items()}
    metadata = {f"{arch}.{key}": value for key, value in sizes.items() if value is not None}
    tensors = (tensor("token_embd.weight", 300, 64), *extra)
    return WrittenCheckpoint(
        {"general.architecture": arch, **metadata}, {stored.name: stored for stored in tensors}
    )


def hf(architecture: str, **changes: object) -> WrittenCheckpoint:
    """A small valid config.json of this architecture; None takes a key away."""
    config: dict[str, object] = {
        "architectures": [architecture],
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
    }
    if architecture.startswith("Gemma3"):
        config |= {"head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 32}
    config |= changes
    return WrittenCheckpoint(
        {"hf_config": {key: value for key, value in config.items() if value is not None}}
    )

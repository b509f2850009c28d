# SPDX-License-Identifier: Apache-2.0
"""What an architecture needs to know of a model, read from GGUF metadata or a HF config."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.models.ops import Activation, RopeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """What may differ from layer to layer."""

    window: int | None
    rope: RopeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    arch: str  # key of the arch registry: llama, qwen2, qwen3, gemma3
    num_layers: int
    d_model: int
    d_ff: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    activation: Activation
    embed_scale: float
    attn_scale: float
    attn_softcap: float | None
    final_softcap: float | None
    tied_head: bool  # logits use the embedding matrix
    layers: tuple[LayerSpec, ...]

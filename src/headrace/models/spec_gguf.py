# SPDX-License-Identifier: Apache-2.0
"""ModelSpec from the metadata of a GGUF file. Absent keys take the default that llama.cpp, which defines
these keys, gives them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sized
from dataclasses import asdict

import numpy as np

from headrace.core.errors import ModelFileError
from headrace.models.fields import Fields
from headrace.models.geometry import Geometry, GeometryKeys, read_geometry
from headrace.models.ops import RopeSpec
from headrace.models.rope_scaling import yarn_attention_factor, yarn_freq_factors
from headrace.models.spec import LayerSpec, ModelSpec
from headrace.weights.checkpoint import Checkpoint

KEYS = GeometryKeys(
    num_layers="block_count",
    d_model="embedding_length",
    d_ff="feed_forward_length",
    num_heads="attention.head_count",
    num_kv_heads="attention.head_count_kv",
    head_dim="attention.key_length",
    context_length="context_length",
    norm_eps="attention.layer_norm_rms_epsilon",
)
GEMMA3_LAYERS_OF_27B = 62  # llama.cpp knows Gemma 3 27B, whose attention scale differs, by its depth


def spec_from_gguf(checkpoint: Checkpoint) -> ModelSpec:
    arch = Fields(checkpoint.path, checkpoint.metadata).text("general.architecture")
    if arch not in _READERS:
        raise ModelFileError(
            checkpoint.path,
            "general.architecture",
            f"{arch!r} is not supported; supported architectures: {', '.join(_READERS)}",
        )
    fields = Fields(checkpoint.path, checkpoint.metadata, f"{arch}.")
    _refuse_experts(fields)
    geometry = read_geometry(fields, KEYS)
    _check_value_length(fields, geometry)
    return _READERS[arch](checkpoint, fields, geometry)


def _llama(checkpoint: Checkpoint, fields: Fields, geometry: Geometry) -> ModelSpec:
    # The converter reorders the q and k rows of this architecture, alone, into interleaved pairs.
    rope = _rope(checkpoint, fields, geometry, interleaved=True)
    window = fields.count("attention.sliding_window") if fields.has("attention.sliding_window") else None
    return _plain_spec("llama", checkpoint, geometry, rope, window)


# Qwen's GGUF files have no key for its windows, which its published configs leave switched off.


def _qwen2(checkpoint: Checkpoint, fields: Fields, geometry: Geometry) -> ModelSpec:
    return _plain_spec("qwen2", checkpoint, geometry, _rope(checkpoint, fields, geometry), None)


def _qwen3(checkpoint: Checkpoint, fields: Fields, geometry: Geometry) -> ModelSpec:
    return _plain_spec("qwen3", checkpoint, geometry, _rope(checkpoint, fields, geometry), None)


def _plain_spec(
    arch: str, checkpoint: Checkpoint, geometry: Geometry, rope: RopeSpec, window: int | None
) -> ModelSpec:
    """All layers alike, nothing scaled but the attention scores."""
    return ModelSpec(
        arch=arch,
        **asdict(geometry),
        vocab_size=_vocab_size(checkpoint, geometry),
        activation="silu",
        embed_scale=1.0,
        attn_scale=geometry.head_dim**-0.5,
        attn_softcap=None,
        final_softcap=None,
        tied_head="output.weight" not in checkpoint.tensors,
        layers=(LayerSpec(window=window, rope=rope),) * geometry.num_layers,
    )


def _gemma3(checkpoint: Checkpoint, fields: Fields, geometry: Geometry) -> ModelSpec:
    window = fields.count("attention.sliding_window")
    local_base = fields.positive("rope.freq_base_swa", 10000.0)
    local = LayerSpec(window=window, rope=RopeSpec(geometry.head_dim, local_base, interleaved=False))
    full = LayerSpec(window=None, rope=_rope(checkpoint, fields, geometry, default_base=1e6))
    is_local = _gemma3_local_layers(fields, geometry.num_layers)
    return ModelSpec(
        arch="gemma3",
        **asdict(geometry),
        vocab_size=_vocab_size(checkpoint, geometry),
        activation="gelu_tanh",
        embed_scale=math.sqrt(geometry.d_model),
        attn_scale=_gemma3_attn_scale(fields, geometry),
        attn_softcap=fields.optional_positive("attn_logit_softcapping"),
        final_softcap=fields.optional_positive("final_logit_softcapping"),
        tied_head="output.weight" not in checkpoint.tensors,
        layers=tuple(local if windowed else full for windowed in is_local),
    )


_Reader = Callable[[Checkpoint, Fields, Geometry], ModelSpec]
_READERS: Mapping[str, _Reader] = {"llama": _llama, "qwen2": _qwen2, "qwen3": _qwen3, "gemma3": _gemma3}


def _gemma3_attn_scale(fields: Fields, geometry: Geometry) -> float:
    if fields.has("attention.scale"):
        return fields.positive("attention.scale")
    if geometry.num_layers == GEMMA3_LAYERS_OF_27B:
        return float((geometry.d_model / geometry.num_heads) ** -0.5)
    return float(geometry.head_dim**-0.5)


def _gemma3_local_layers(fields: Fields, num_layers: int) -> list[bool]:
    """Which layers see only a window: every one but each n-th, or as a list in the file says."""
    key = "attention.sliding_window_pattern"
    pattern = fields.values.get(fields.name(key))
    if isinstance(pattern, np.ndarray):
        if pattern.shape != (num_layers,):
            raise fields.fault(key, f"must have one entry for each of the {num_layers} layers")
        return [bool(entry) for entry in pattern]
    period = fields.count(key, 6)
    return [(layer + 1) % period != 0 for layer in range(num_layers)]


def _rope(
    checkpoint: Checkpoint,
    fields: Fields,
    geometry: Geometry,
    *,
    interleaved: bool = False,
    default_base: float = 10000.0,
) -> RopeSpec:
    dim = fields.count("rope.dimension_count", geometry.head_dim, high=geometry.head_dim)
    if dim % 2:
        raise fields.fault("rope.dimension_count", f"must be even, got {dim}")
    base = fields.positive("rope.freq_base", default_base)
    kind, factor = _rope_scaling(fields)
    tensor_factors = _rope_freqs_tensor(checkpoint, dim)
    if kind != "yarn":
        return RopeSpec(dim, base, interleaved, freq_factors=tensor_factors, linear_scale=factor)
    if tensor_factors is not None:
        raise fields.fault("rope.scaling.type", "yarn together with a rope_freqs.weight tensor")
    original = fields.count("rope.scaling.original_context_length", geometry.context_length)
    return RopeSpec(
        dim,
        base,
        interleaved,
        freq_factors=yarn_freq_factors(
            dim=dim,
            base=base,
            factor=factor,
            original=original,
            beta_fast=fields.positive("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=fields.positive("rope.scaling.yarn_beta_slow", 1.0),
        ),
        attention_factor=fields.positive("rope.scaling.attn_factor", 1.0) * yarn_attention_factor(factor),
    )


def _rope_scaling(fields: Fields) -> tuple[str, float]:
    """Kind and factor; `rope.scale_linear` is how files of 2023 spelled a linear factor."""
    kind = fields.text("rope.scaling.type", "linear")
    if kind == "none":
        return kind, 1.0
    if kind not in ("linear", "yarn"):
        raise fields.fault("rope.scaling.type", f"{kind!r} is not supported; supported: none, linear, yarn")
    key = "rope.scaling.factor" if fields.has("rope.scaling.factor") else "rope.scale_linear"
    return kind, fields.positive(key, 1.0)


def _rope_freqs_tensor(checkpoint: Checkpoint, dim: int) -> tuple[float, ...] | None:
    """Llama 3.1's frequency divisors, which its converter stores as a tensor."""
    stored = checkpoint.tensors.get("rope_freqs.weight")
    if stored is None:
        return None
    if stored.format.name != "F32" or stored.shape != (dim // 2,):
        message = f"must be F32 of shape ({dim // 2},), is {stored.format.name} of shape {stored.shape}"
        raise ModelFileError(checkpoint.path, stored.name, message)
    factors = stored.data.view(np.float32)
    if not (np.isfinite(factors) & (factors > 0)).all():
        raise ModelFileError(checkpoint.path, stored.name, "holds values that are not finite and above 0")
    return tuple(factors.tolist())


def _vocab_size(checkpoint: Checkpoint, geometry: Geometry) -> int:
    """The embedding's rows: what ids the model can take is what it has rows for."""
    stored = checkpoint.tensors.get("token_embd.weight")
    if stored is None:
        raise ModelFileError(checkpoint.path, "token_embd.weight", "tensor is missing")
    if len(stored.shape) != 2 or stored.shape[1] != geometry.d_model:
        message = f"tensor has shape {stored.shape}; its rows must be {geometry.d_model} wide"
        raise ModelFileError(checkpoint.path, "token_embd.weight", message)
    _check_tokens(checkpoint, stored.shape[0])
    return stored.shape[0]


def _check_tokens(checkpoint: Checkpoint, num_rows: int) -> None:
    tokens = checkpoint.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Sized) and len(tokens) > num_rows:
        message = f"{len(tokens)} tokens, but token_embd.weight has rows for {num_rows}"
        raise ModelFileError(checkpoint.path, "tokenizer.ggml.tokens", message)


def _check_value_length(fields: Fields, geometry: Geometry) -> None:
    key = "attention.value_length"
    if fields.has(key) and fields.count(key) != geometry.head_dim:
        raise fields.fault(key, f"must equal the key length {geometry.head_dim}, got {fields.count(key)}")


def _refuse_experts(fields: Fields) -> None:
    if fields.values.get(fields.name("expert_count")) not in (None, 0):
        raise fields.fault("expert_count", "mixture-of-experts models are not supported")

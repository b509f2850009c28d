# SPDX-License-Identifier: Apache-2.0
"""ModelSpec from the `config.json` of a Hugging Face folder, as transformers 4 and 5 write it. Absent keys
take the default of transformers' own config class."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Literal, get_args

from headrace.core.errors import ModelFileError
from headrace.models.fields import Fields
from headrace.models.geometry import Geometry, GeometryKeys, read_geometry
from headrace.models.ops import RopeSpec
from headrace.models.rope_hf import full_rope, local_rope, one_rope
from headrace.models.spec import LayerSpec, ModelSpec
from headrace.weights.checkpoint import Checkpoint

KEYS = GeometryKeys(
    num_layers="num_hidden_layers",
    d_model="hidden_size",
    d_ff="intermediate_size",
    num_heads="num_attention_heads",
    num_kv_heads="num_key_value_heads",
    head_dim="head_dim",
    context_length="max_position_embeddings",
    norm_eps="rms_norm_eps",
)
LayerType = Literal["full_attention", "sliding_attention"]
LAYER_TYPES = get_args(LayerType)


def spec_from_hf_config(checkpoint: Checkpoint) -> ModelSpec:
    values = checkpoint.metadata["hf_config"]
    if not isinstance(values, Mapping):
        raise ModelFileError(checkpoint.path, "config.json", "must be a JSON object")
    config = Fields(checkpoint.path, values)
    name = _architecture(config)
    if config.flag("mlp_bias", False):
        raise config.fault("mlp_bias", "biases in the feed-forward layers are not supported")
    return _READERS[name](config, read_geometry(config, KEYS))


def _architecture(config: Fields) -> str:
    value = config.values.get("architectures")
    names = value if isinstance(value, list) else []
    for name in names:
        if name in _READERS:
            return str(name)
    raise ModelFileError(
        config.path, "architectures", f"{value!r} is not supported; supported: {', '.join(_READERS)}"
    )


def _llama(config: Fields, geometry: Geometry) -> ModelSpec:
    return _plain_spec("llama", config, geometry, ["full_attention"] * geometry.num_layers)


def _mistral(config: Fields, geometry: Geometry) -> ModelSpec:
    kind: LayerType = "sliding_attention" if config.has("sliding_window") else "full_attention"
    return _plain_spec("llama", config, geometry, [kind] * geometry.num_layers)


def _qwen2(config: Fields, geometry: Geometry) -> ModelSpec:
    return _plain_spec("qwen2", config, geometry, _qwen_layer_types(config, geometry.num_layers))


def _qwen3(config: Fields, geometry: Geometry) -> ModelSpec:
    return _plain_spec("qwen3", config, geometry, _qwen_layer_types(config, geometry.num_layers))


def _plain_spec(arch: str, config: Fields, geometry: Geometry, layer_types: list[LayerType]) -> ModelSpec:
    """Layers differ in their window at most; nothing is scaled but the attention scores."""
    _require_activation(config, "hidden_act", "silu", "silu")
    rope = one_rope(config, geometry)
    return ModelSpec(
        arch=arch,
        **asdict(geometry),
        vocab_size=config.count("vocab_size"),
        activation="silu",
        embed_scale=1.0,
        attn_scale=geometry.head_dim**-0.5,
        attn_softcap=None,
        final_softcap=None,
        tied_head=config.flag("tie_word_embeddings", False),
        layers=_layers(config, layer_types, local=rope, full=rope),
    )


def _gemma3(config: Fields, geometry: Geometry) -> ModelSpec:
    _require_activation(config, "hidden_activation", "gelu_pytorch_tanh", "gelu_pytorch_tanh")
    if config.flag("use_bidirectional_attention", False):
        raise config.fault("use_bidirectional_attention", "models that see ahead are not supported")
    return ModelSpec(
        arch="gemma3",
        **asdict(geometry),
        vocab_size=config.count("vocab_size"),
        activation="gelu_tanh",
        embed_scale=math.sqrt(geometry.d_model),
        attn_scale=config.positive("query_pre_attn_scalar", 256.0) ** -0.5,
        attn_softcap=config.optional_positive("attn_logit_softcapping"),
        final_softcap=config.optional_positive("final_logit_softcapping"),
        tied_head=config.flag("tie_word_embeddings", True),
        layers=_layers(
            config,
            _gemma3_layer_types(config, geometry.num_layers),
            local=local_rope(config, geometry),
            full=full_rope(config, geometry),
        ),
    )


_Reader = Callable[[Fields, Geometry], ModelSpec]
_READERS: Mapping[str, _Reader] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "Gemma3ForCausalLM": _gemma3,
}


def _layers(
    config: Fields, layer_types: list[LayerType], *, local: RopeSpec, full: RopeSpec
) -> tuple[LayerSpec, ...]:
    kinds = {"full_attention": LayerSpec(window=None, rope=full)}
    if "sliding_attention" in layer_types:
        kinds["sliding_attention"] = LayerSpec(window=config.count("sliding_window"), rope=local)
    return tuple(kinds[layer_type] for layer_type in layer_types)


def _qwen_layer_types(config: Fields, num_layers: int) -> list[LayerType]:
    """Layers from `max_window_layers` on see only a window, where `use_sliding_window` is set."""
    if not config.flag("use_sliding_window", False) or not config.has("sliding_window"):
        return ["full_attention"] * num_layers
    first = config.whole("max_window_layers", 28)
    by_depth: list[LayerType] = [
        "sliding_attention" if layer >= first else "full_attention" for layer in range(num_layers)
    ]
    return _listed_layer_types(config, num_layers) or by_depth


def _gemma3_layer_types(config: Fields, num_layers: int) -> list[LayerType]:
    period = config.count("sliding_window_pattern", 6)
    by_period: list[LayerType] = [
        "sliding_attention" if (layer + 1) % period else "full_attention" for layer in range(num_layers)
    ]
    return _listed_layer_types(config, num_layers) or by_period


def _listed_layer_types(config: Fields, num_layers: int) -> list[LayerType] | None:
    if not config.has("layer_types"):
        return None
    listed = config.values[config.name("layer_types")]
    if not isinstance(listed, list) or len(listed) != num_layers:
        raise config.fault("layer_types", f"must be a list of {num_layers} entries, one a layer")
    unknown = [entry for entry in listed if entry not in LAYER_TYPES]
    if unknown:
        raise config.fault("layer_types", f"{unknown[0]!r} is not one of {', '.join(LAYER_TYPES)}")
    return list(listed)


def _require_activation(config: Fields, key: str, default: str, supported: str) -> None:
    if (name := config.text(key, default)) != supported:
        raise config.fault(key, f"{name!r} is not supported for this architecture; it must be {supported!r}")

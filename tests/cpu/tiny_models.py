# SPDX-License-Identifier: Apache-2.0
"""Tiny random transformers models of every architecture, and the two files they are stored as: a Hugging
Face folder, and a GGUF written with the gguf package under its own names for tensors and keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import numpy as np
import torch
import transformers as hf
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.gemma3.modeling_gemma3 import eager_attention_forward

VOCAB = 301
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-3,  # far from every default, so that a misread one shows
    "attn_implementation": "eager",  # the only one that knows soft caps
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 8.0,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
GEMMA3 = SHAPE | {
    "num_hidden_layers": 7,
    "head_dim": 16,
    "sliding_window": 8,
    "query_pre_attn_scalar": 16,
}
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}


@dataclass(frozen=True)
class TinyModel:
    arch: str  # GGUF's name
    config: Callable[..., Any]
    options: dict[str, Any]
    gguf_keys: dict[str, float | str | list[bool]] = field(default_factory=dict)  # beyond the sizes


TINY_MODELS: dict[str, TinyModel] = {
    "llama": TinyModel("llama", hf.LlamaConfig, SHAPE),
    "llama-tied-llama3-rope": TinyModel(
        "llama", hf.LlamaConfig, SHAPE | {"tie_word_embeddings": True, "rope_parameters": LLAMA3_ROPE}
    ),
    "llama-linear-rope-wide-heads": TinyModel(
        "llama",
        hf.LlamaConfig,
        SHAPE | {"head_dim": 32, "rope_parameters": LINEAR_ROPE},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "llama-yarn-rope-one-kv-head": TinyModel(
        "llama",
        hf.LlamaConfig,
        SHAPE | {"num_key_value_heads": 1, "rope_parameters": YARN_ROPE},
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.yarn_beta_fast": 8.0,
        },
    ),
    "llama-attention-bias": TinyModel("llama", hf.LlamaConfig, SHAPE | {"attention_bias": True}),
    "mistral-window": TinyModel(
        "llama", hf.MistralConfig, SHAPE | {"sliding_window": 8}, {"attention.sliding_window": 8}
    ),
    "qwen2": TinyModel("qwen2", hf.Qwen2Config, SHAPE | {"rope_theta": 1e6}),
    "qwen2-tied-three-groups": TinyModel(
        "qwen2",
        hf.Qwen2Config,
        SHAPE | {"hidden_size": 96, "num_attention_heads": 6, "tie_word_embeddings": True},
    ),
    "qwen3": TinyModel("qwen3", hf.Qwen3Config, SHAPE | {"head_dim": 32}),
    "qwen3-tied-yarn": TinyModel(
        "qwen3",
        hf.Qwen3Config,
        SHAPE | {"head_dim": 16, "tie_word_embeddings": True, "rope_parameters": YARN_ROPE},
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.yarn_beta_fast": 8.0,
        },
    ),
    "gemma3": TinyModel("gemma3", hf.Gemma3TextConfig, GEMMA3),
    "gemma3-stretched-capped": TinyModel(
        "gemma3",
        hf.Gemma3TextConfig,
        GEMMA3
        | {
            "query_pre_attn_scalar": 24,
            "rope_parameters": GEMMA3_ROPE,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
        },
        {
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
            "attention.scale": 24**-0.5,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3-listed-layers": TinyModel(
        "gemma3",
        hf.Gemma3TextConfig,
        GEMMA3 | {"layer_types": ["sliding_attention", "full_attention"] * 3 + ["sliding_attention"]},
        {"attention.sliding_window_pattern": [True, False] * 3 + [True]},
    ),
}


@cache
def tiny_model(name: str) -> Any:
    """The transformers model in float32, every parameter random: norms too, so that a skipped one shows."""
    options = {
        key: dict(value) if isinstance(value, dict) else value for key, value in _options(name).items()
    }
    torch.manual_seed(sorted(TINY_MODELS).index(name))
    model = hf.AutoModelForCausalLM.from_config(TINY_MODELS[name].config(**options)).float().eval()
    one = 0.0 if TINY_MODELS[name].arch == "gemma3" else 1.0  # Gemma stores its norm weights less one
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "norm" in key:
                value.uniform_(one - 0.5, one + 0.5)
            elif key.endswith("bias"):
                value.normal_(0.0, 0.5)
            else:
                value.normal_(0.0, value.shape[-1] ** -0.5)
    return model


def oracle_logits(name: str, sequences: list[list[int]]) -> list[np.ndarray]:
    """(places, V) of each sequence in one pass without a cache. transformers reads Gemma 3's attention soft
    cap from the config and then forgets to hand it to its attention, which this puts right."""
    model = tiny_model(name)

    def capped(module: Any, *args: Any, **kwargs: Any) -> Any:
        return eager_attention_forward(module, *args, softcap=module.attn_logit_softcapping, **kwargs)

    with torch.no_grad(), patch.object(modeling_gemma3, "eager_attention_forward", capped):
        return [model(torch.tensor([ids]), use_cache=False).logits[0].numpy() for ids in sequences]


def _options(name: str) -> dict[str, Any]:
    return TINY_MODELS[name].options


def save_hf(name: str, folder: Path) -> Path:
    tiny_model(name).save_pretrained(folder)
    return folder


def save_gguf(name: str, path: Path) -> Path:
    tiny, model = TINY_MODELS[name], tiny_model(name)
    writer = gguf.GGUFWriter(path, tiny.arch)
    _write_keys(writer, tiny, model.config)
    for key, value in _gguf_tensors(tiny, model).items():
        writer.add_tensor(key, np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_keys(writer: gguf.GGUFWriter, tiny: TinyModel, config: Any) -> None:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if tiny.arch == "gemma3":
        writer.add_sliding_window(config.sliding_window)
    for key, value in tiny.gguf_keys.items():
        _write_key(writer, f"{tiny.arch}.{key}", value)


def _write_key(writer: gguf.GGUFWriter, key: str, value: float | str | list[bool]) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    else:
        writer.add_float32(key, value)


def _gguf_tensors(tiny: TinyModel, model: Any) -> dict[str, np.ndarray]:
    config = model.config
    arch = {text: number for number, text in gguf.MODEL_ARCH_NAMES.items()}[tiny.arch]
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    tensors = {}
    for key, parameter in model.named_parameters():
        value = parameter.detach().numpy()
        if tiny.arch == "llama" and "q_proj" in key:
            value = interleave(value, config.num_attention_heads)
        if tiny.arch == "llama" and "k_proj" in key:
            value = interleave(value, config.num_key_value_heads)
        if tiny.arch == "gemma3" and "norm" in key:
            value = value + 1
        name = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert name is not None, key
        tensors[name] = value
    if config.rope_parameters.get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = _llama3_divisors(model)
    return tensors


def interleave(value: np.ndarray, num_heads: int) -> np.ndarray:
    """q or k rows (weight or bias) from half-split to neighbouring pairs, as GGUF's llama has them."""
    halves = value.reshape(num_heads, 2, -1, *value.shape[1:])
    return halves.swapaxes(1, 2).reshape(value.shape)


def _llama3_divisors(model: Any) -> np.ndarray:
    """What transformers itself made of the frequencies."""
    scaled = model.model.rotary_emb.inv_freq.double().numpy()
    plain = 10000.0 ** -(np.arange(len(scaled)) / len(scaled))
    return (plain / scaled).astype(np.float32)

# SPDX-License-Identifier: Apache-2.0
"""A real GGUF file as a transformers model: a config made from its metadata by hand, its tensors expanded
to float32 by the gguf package, q and k put back into transformers' order."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import torch
import transformers as hf
from transformers.initialization import no_init_weights

from headrace.weights.checkpoint import Checkpoint, StoredTensor


def transformers_twin(checkpoint: Checkpoint) -> Any:
    arch = str(checkpoint.metadata["general.architecture"])
    config = {"llama": _llama_config, "gemma3": _gemma3_config}[arch](_Keys(checkpoint, arch))
    with no_init_weights():  # all are replaced below; drawing them takes seconds
        model = hf.AutoModelForCausalLM.from_config(config).eval()
    model.tie_weights()
    names = gguf.get_tensor_name_map(_ARCHS[arch], config.num_hidden_layers)
    used = set()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            name = names.get_name(key, try_suffixes=(".weight", ".bias"))
            value = expand(checkpoint.tensors[name]).copy()
            if arch == "llama" and ("q_proj" in key or "k_proj" in key):
                value = _split_halves(value, value.shape[0] // config.head_dim)
            if arch == "gemma3" and "norm" in key:
                value = value - 1
            parameter.copy_(torch.from_numpy(value))
            used.add(name)
    assert used == set(checkpoint.tensors)
    return model


def expand(stored: StoredTensor) -> np.ndarray:
    kind = gguf.GGMLQuantizationType(stored.format.gguf_id)
    rows = stored.data.reshape(-1, stored.format.num_bytes(stored.shape[-1]))
    return gguf.dequantize(rows, kind).reshape(stored.shape)


def nlls(model: Any, tokens: tuple[int, ...], first: int) -> np.ndarray:
    """Negative log likelihood of tokens[first:]."""
    ids = torch.tensor([tokens])
    with torch.no_grad():
        hidden = model.model(ids, use_cache=False).last_hidden_state[0, first - 1 : -1]
        logprobs = torch.log_softmax(model.lm_head(hidden).double(), dim=-1)
    return -logprobs.gather(1, ids[0, first:, None])[:, 0].numpy()


_ARCHS = {text: number for number, text in gguf.MODEL_ARCH_NAMES.items()}


class _Keys:
    def __init__(self, checkpoint: Checkpoint, arch: str) -> None:
        self.metadata, self.arch = checkpoint.metadata, arch
        self.vocab_size = checkpoint.tensors["token_embd.weight"].shape[0]

    def __call__(self, key: str) -> Any:
        return self.metadata[f"{self.arch}.{key}"]

    def common(self) -> dict[str, Any]:
        return {
            "vocab_size": self.vocab_size,
            "hidden_size": self("embedding_length"),
            "intermediate_size": self("feed_forward_length"),
            "num_hidden_layers": self("block_count"),
            "num_attention_heads": self("attention.head_count"),
            "num_key_value_heads": self("attention.head_count_kv"),
            "max_position_embeddings": self("context_length"),
            "rms_norm_eps": self("attention.layer_norm_rms_epsilon"),
            "tie_word_embeddings": True,
        }


def _llama_config(keys: _Keys) -> Any:
    rope = {"rope_type": "default", "rope_theta": keys("rope.freq_base")}
    return hf.LlamaConfig(
        **keys.common(), head_dim=keys("rope.dimension_count"), hidden_act="silu", rope_parameters=rope
    )


def _gemma3_config(keys: _Keys) -> Any:
    rope = {
        "full_attention": {"rope_type": "default", "rope_theta": keys("rope.freq_base")},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    return hf.Gemma3TextConfig(
        **keys.common(),
        head_dim=keys("attention.key_length"),
        query_pre_attn_scalar=keys("attention.key_length"),
        sliding_window=keys("attention.sliding_window"),
        rope_parameters=rope,
    )


def _split_halves(value: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of neighbouring pairs to half-split ones."""
    pairs = value.reshape(num_heads, -1, 2, value.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(value.shape)

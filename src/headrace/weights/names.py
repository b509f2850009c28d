# SPDX-License-Identifier: Apache-2.0
"""What Hugging Face calls a tensor and what GGUF calls it. The rest of Headrace knows GGUF's names."""

from __future__ import annotations

import re
from collections.abc import Mapping

OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
IN_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
PRE_NORM_ONLY = IN_LAYER | {"post_attention_layernorm": "ffn_norm"}
PRE_AND_POST_NORM = IN_LAYER | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}

# `model_type` of config.json -> its names within a layer
LAYER_NAMES: Mapping[str, Mapping[str, str]] = {
    "llama": PRE_NORM_ONLY,
    "mistral": PRE_NORM_ONLY,
    "qwen2": PRE_NORM_ONLY,
    "qwen3": PRE_NORM_ONLY,
    "gemma3": PRE_AND_POST_NORM,
    "gemma3_text": PRE_AND_POST_NORM,
}

LAYER_TENSOR = re.compile(r"model\.layers\.(?P<layer>\d+)\.(?P<module>.+)\.(?P<kind>weight|bias)")


def gguf_name(model_type: str, hf_name: str) -> str:
    """GGUF's name of a tensor; one that GGUF has no name for keeps its own."""
    if hf_name in OUTER:
        return OUTER[hf_name]
    found = LAYER_TENSOR.fullmatch(hf_name)
    module = LAYER_NAMES[model_type].get(found["module"]) if found else None
    return hf_name if found is None or module is None else f"blk.{found['layer']}.{module}.{found['kind']}"

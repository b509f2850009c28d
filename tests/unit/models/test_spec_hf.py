# SPDX-License-Identifier: Apache-2.0
"""What is read from a Hugging Face config.json, as transformers 4 and 5 write it."""

from __future__ import annotations

import pytest
from written_checkpoint import hf

from headrace.core.errors import ModelFileError
from headrace.models.ops import RopeSpec
from headrace.models.registry import spec_from_checkpoint

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def rope_of(**changes: object) -> RopeSpec:
    return spec_from_checkpoint(hf("LlamaForCausalLM", **changes)).layers[0].rope


@pytest.mark.parametrize(
    ("architecture", "arch"),
    [
        ("LlamaForCausalLM", "llama"),
        ("MistralForCausalLM", "llama"),
        ("Qwen2ForCausalLM", "qwen2"),
        ("Qwen3ForCausalLM", "qwen3"),
        ("Gemma3ForCausalLM", "gemma3"),
    ],
)
def test_architectures(architecture: str, arch: str) -> None:
    spec = spec_from_checkpoint(hf(architecture))
    assert spec.arch == arch
    assert not spec.layers[0].rope.interleaved
    assert spec.tied_head == (arch == "gemma3")


@pytest.mark.parametrize("value", [["MixtralForCausalLM"], [], None, "LlamaForCausalLM", [7]])
def test_an_unknown_architecture_is_told_the_known_ones(value: object) -> None:
    with pytest.raises(ModelFileError, match=r"architectures: .*supported: LlamaForCausalLM, .*Gemma3"):
        spec_from_checkpoint(hf("LlamaForCausalLM", architectures=value))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", None),
        ("num_hidden_layers", 0),
        ("num_attention_heads", "4"),
        ("num_key_value_heads", 3),
        ("head_dim", 7),
        ("rms_norm_eps", None),
        ("vocab_size", -1),
        ("rope_theta", 0),
        ("hidden_act", "relu"),
        ("tie_word_embeddings", "yes"),
        ("mlp_bias", True),
        ("partial_rotary_factor", 0.5),
    ],
)
def test_a_bad_value_is_refused_by_its_key(key: str, value: object) -> None:
    with pytest.raises(ModelFileError) as raised:
        spec_from_checkpoint(hf("LlamaForCausalLM", **{key: value}))
    assert raised.value.field == key


def test_a_null_head_dim_follows_from_the_width() -> None:
    assert spec_from_checkpoint(hf("LlamaForCausalLM", head_dim=None)).head_dim == 16


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su", "mrope"])
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_unknown_rope_types_are_refused_by_name(kind: str, key: str) -> None:
    with pytest.raises(ModelFileError, match=rf"rope_scaling\.{key}: .*'{kind}'.*: default, linear"):
        rope_of(rope_scaling={key: kind, "factor": 2.0})


@pytest.mark.parametrize("missing", ["factor", "low_freq_factor", "high_freq_factor"])
def test_llama3_scaling_needs_its_numbers(missing: str) -> None:
    scaling = {key: value for key, value in LLAMA3.items() if key != missing}
    with pytest.raises(ModelFileError) as raised:
        rope_of(rope_scaling=scaling)
    assert raised.value.field == f"rope_scaling.{missing}"


@pytest.mark.parametrize(
    "scaling",
    [
        LLAMA3,
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {"rope_type": "default"},
    ],
)
def test_transformers_4_and_5_spell_the_same_rope(scaling: dict[str, object]) -> None:
    four = rope_of(rope_theta=5e5, rope_scaling=scaling)
    five = rope_of(rope_parameters={**scaling, "rope_theta": 5e5})
    assert four == five
    assert four.base == 5e5


def test_llama3_scaling_by_hand() -> None:
    """With base 10000 and heads of 16, pairs 0 and 1 turn 10.2 and 3.2 times in 64 tokens, pair 2 once."""
    factors = rope_of(rope_scaling=LLAMA3).freq_factors
    assert factors is not None
    keep = (64 / (6.283185307179586 * 10000 ** (2 / 16)) - 1) / 3
    assert factors[0] == 1.0
    assert factors[1] == pytest.approx(1 / (keep + (1 - keep) / 8))
    assert factors[3:] == (8.0,) * 5


def test_yarn_attention_factor() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    assert rope_of(rope_scaling=yarn).attention_factor == pytest.approx(1.1386294361119891)
    assert rope_of(rope_scaling={**yarn, "attention_factor": 1.5}).attention_factor == 1.5
    equal = {**yarn, "mscale": 0.7, "mscale_all_dim": 0.7}
    assert rope_of(rope_scaling=equal).attention_factor == 1.0


def test_mistral_window_is_every_layers() -> None:
    windowed = spec_from_checkpoint(hf("MistralForCausalLM", sliding_window=8))
    assert {layer.window for layer in windowed.layers} == {8}
    assert {layer.window for layer in spec_from_checkpoint(hf("MistralForCausalLM")).layers} == {None}


def test_qwen_window_starts_at_a_layer_and_only_if_switched_on() -> None:
    options = {"sliding_window": 8, "max_window_layers": 5}
    off = spec_from_checkpoint(hf("Qwen2ForCausalLM", use_sliding_window=False, **options))
    assert {layer.window for layer in off.layers} == {None}
    on = spec_from_checkpoint(hf("Qwen2ForCausalLM", use_sliding_window=True, **options))
    assert [layer.window for layer in on.layers] == [None] * 5 + [8, 8]


def test_gemma3_of_transformers_4() -> None:
    spec = spec_from_checkpoint(
        hf("Gemma3ForCausalLM", rope_theta=1e6, rope_scaling={"rope_type": "linear", "factor": 8.0})
    )
    assert [layer.window for layer in spec.layers] == [8, 8, 8, 8, 8, None, 8]
    assert spec.layers[0].rope == RopeSpec(32, 10000.0, interleaved=False)
    assert spec.layers[5].rope == RopeSpec(32, 1e6, interleaved=False, linear_scale=8.0)


def test_gemma3_of_transformers_5() -> None:
    kinds = ["sliding_attention", "full_attention"]
    spec = spec_from_checkpoint(
        hf(
            "Gemma3ForCausalLM",
            num_hidden_layers=4,
            layer_types=kinds * 2,
            query_pre_attn_scalar=168,
            final_logit_softcapping=30.0,
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            },
        )
    )
    assert [layer.window for layer in spec.layers] == [8, None, 8, None]
    assert [layer.rope.base for layer in spec.layers] == [2e4, 1e6, 2e4, 1e6]
    assert spec.attn_scale == 168**-0.5
    assert (spec.attn_softcap, spec.final_softcap) == (None, 30.0)


@pytest.mark.parametrize("value", [["full_attention"], ["chunked_attention"] * 7, "full_attention"])
def test_bad_layer_types(value: object) -> None:
    with pytest.raises(ModelFileError) as raised:
        spec_from_checkpoint(hf("Gemma3ForCausalLM", layer_types=value))
    assert raised.value.field == "layer_types"

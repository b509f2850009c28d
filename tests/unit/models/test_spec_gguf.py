# SPDX-License-Identifier: Apache-2.0
"""What is read from GGUF metadata, and that every bad value is refused by the name of its key."""

from __future__ import annotations

import math

import numpy as np
import pytest
from written_checkpoint import gguf, tensor

from headrace.core.errors import ModelFileError
from headrace.models.registry import spec_from_checkpoint


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "gemma3"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("context_length", None),
        ("context_length", "256"),
        ("block_count", 0),
        ("block_count", 2**31),
        ("block_count", None),
        ("embedding_length", -64),
        ("embedding_length", None),
        ("feed_forward_length", 2.5),
        ("feed_forward_length", True),
        ("attention__head_count", 0),
        ("attention__head_count", 2**40),
        ("attention__head_count_kv", 0),
        ("attention__head_count_kv", 3),
        ("attention__head_count_kv", np.array([2, 2, 2, 2, 2, 2, 2])),
        ("attention__key_length", 15),
        ("attention__key_length", 2**20),
        ("attention__value_length", 8),
        ("attention__layer_norm_rms_epsilon", 0.0),
        ("attention__layer_norm_rms_epsilon", math.nan),
        ("attention__layer_norm_rms_epsilon", None),
        ("rope__freq_base", -1.0),
        ("rope__freq_base", math.inf),
        ("rope__dimension_count", 7),
        ("rope__dimension_count", 4096),
        ("rope__scaling__type", "longrope"),
        ("rope__scaling__type", 4),
        ("rope__scaling__factor", 0.0),
        ("expert_count", 8),
    ],
)
def test_a_bad_value_is_refused_by_its_key(arch: str, key: str, value: object) -> None:
    with pytest.raises(ModelFileError) as raised:
        spec_from_checkpoint(gguf(arch, **{key: value}))
    assert raised.value.field == f"{arch}.{key.replace('__', '.')}"


def test_heads_that_do_not_divide_the_width() -> None:
    with pytest.raises(ModelFileError, match=r"qwen2\.attention\.head_count: .*attention\.key_length"):
        spec_from_checkpoint(gguf("qwen2", attention__head_count=6))


def test_an_odd_head_that_no_key_states() -> None:
    with pytest.raises(ModelFileError, match=r"llama\.attention\.head_count: .*1 wide"):
        spec_from_checkpoint(gguf("llama", attention__head_count=64))


def test_an_unknown_architecture_is_told_the_known_ones() -> None:
    with pytest.raises(ModelFileError, match=r"'mamba' is not supported.*llama, qwen2, qwen3, gemma3"):
        spec_from_checkpoint(gguf("mamba"))


def test_no_architecture_at_all() -> None:
    checkpoint = gguf("llama")
    metadata = {key: value for key, value in checkpoint.metadata.items() if "general" not in key}
    with pytest.raises(ModelFileError, match=r"general\.architecture: is missing"):
        spec_from_checkpoint(type(checkpoint)(metadata, checkpoint.tensors))


def test_gemma3_needs_its_window() -> None:
    with pytest.raises(ModelFileError, match=r"gemma3\.attention\.sliding_window: is missing"):
        spec_from_checkpoint(gguf("gemma3", attention__sliding_window=None))


def test_more_tokens_than_the_embedding_has_rows() -> None:
    checkpoint = gguf("llama")
    metadata = {**checkpoint.metadata, "tokenizer.ggml.tokens": ["x"] * 301}
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.tokens: 301 tokens"):
        spec_from_checkpoint(type(checkpoint)(metadata, checkpoint.tensors))


def test_sizes_and_defaults_of_llama() -> None:
    spec = spec_from_checkpoint(gguf("llama", attention__head_count_kv=None))
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.vocab_size) == (4, 4, 16, 300)
    assert (spec.attn_scale, spec.embed_scale, spec.tied_head) == (0.25, 1.0, True)
    assert len(spec.layers) == 7
    assert spec.layers[0].window is None
    assert (spec.layers[0].rope.dim, spec.layers[0].rope.base) == (16, 10000.0)


def test_only_llama_rotates_neighbouring_pairs() -> None:
    specs = {arch: spec_from_checkpoint(gguf(arch)) for arch in ("llama", "qwen2", "qwen3", "gemma3")}
    assert [arch for arch, spec in specs.items() if spec.layers[0].rope.interleaved] == ["llama"]


def test_a_stored_head_is_used() -> None:
    spec = spec_from_checkpoint(gguf("llama", tensor("output.weight", 300, 64)))
    assert not spec.tied_head


def test_mistral_window() -> None:
    spec = spec_from_checkpoint(gguf("llama", attention__sliding_window=4096))
    assert {layer.window for layer in spec.layers} == {4096}


def test_gemma3_has_five_local_layers_to_a_global_one() -> None:
    spec = spec_from_checkpoint(
        gguf("gemma3", rope__freq_base=1e6, rope__scaling__type="linear", rope__scaling__factor=8.0)
    )
    assert [layer.window for layer in spec.layers] == [8, 8, 8, 8, 8, None, 8]
    local, full = spec.layers[0].rope, spec.layers[5].rope
    assert (local.base, local.linear_scale) == (10000.0, 1.0)
    assert (full.base, full.linear_scale) == (1e6, 8.0)
    assert spec.embed_scale == 8.0
    assert spec.attn_scale == 32**-0.5


@pytest.mark.parametrize(
    ("pattern", "windows"),
    [
        (3, [8, 8, None, 8, 8, None, 8]),
        (np.array([True, False, True, True, True, True, False]), [8, None, 8, 8, 8, 8, None]),
    ],
)
def test_gemma3_pattern_of_the_file(pattern: object, windows: list[int | None]) -> None:
    spec = spec_from_checkpoint(gguf("gemma3", attention__sliding_window_pattern=pattern))
    assert [layer.window for layer in spec.layers] == windows


def test_gemma3_pattern_of_the_wrong_length() -> None:
    with pytest.raises(ModelFileError, match="one entry for each of the 7 layers"):
        spec_from_checkpoint(gguf("gemma3", attention__sliding_window_pattern=np.array([True])))


def test_gemma3_27b_divides_by_its_width_per_head() -> None:
    spec = spec_from_checkpoint(gguf("gemma3", block_count=62))
    assert spec.attn_scale == 16**-0.5  # 64 / 4, not the key length 32


def test_a_linear_factor_as_files_of_2023_spell_it() -> None:
    spec = spec_from_checkpoint(gguf("llama", rope__scale_linear=4.0))
    assert spec.layers[0].rope.linear_scale == 4.0


def test_scaling_none_ignores_a_factor() -> None:
    spec = spec_from_checkpoint(gguf("llama", rope__scaling__type="none", rope__scaling__factor=4.0))
    assert spec.layers[0].rope.linear_scale == 1.0


def test_frequency_divisors_come_from_the_tensor() -> None:
    divisors = np.arange(1, 9)
    spec = spec_from_checkpoint(gguf("llama", tensor("rope_freqs.weight", 8, values=divisors)))
    assert spec.layers[0].rope.freq_factors == tuple(range(1, 9))


@pytest.mark.parametrize("values", [np.arange(8), np.full(8, np.nan), np.ones(7)])
def test_bad_frequency_divisors(values: np.ndarray) -> None:
    with pytest.raises(ModelFileError, match=r"rope_freqs\.weight"):
        spec_from_checkpoint(gguf("llama", tensor("rope_freqs.weight", len(values), values=values)))


def test_the_embedding_must_fit_the_width() -> None:
    with pytest.raises(ModelFileError, match=r"token_embd\.weight"):
        spec_from_checkpoint(gguf("llama", embedding_length=128))

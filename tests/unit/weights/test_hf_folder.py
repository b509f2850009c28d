# SPDX-License-Identifier: Apache-2.0
"""Hugging Face folders give the same view as a GGUF file: its names, its meaning of a norm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from folder_builder import LLAMA, entry, float_file, safetensors, write_folder

from headrace.core.errors import ModelFileError
from headrace.weights.names import gguf_name
from headrace.weights.open import open_checkpoint

TIED = LLAMA | {"tie_word_embeddings": True}
EMBED = {"model.embed_tokens.weight": np.arange(12).reshape(6, 2)}


def refused(path: Path) -> ModelFileError:
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(path)
    return caught.value


@pytest.mark.parametrize(
    ("model_type", "hf_name", "expected"),
    [
        ("llama", "model.embed_tokens.weight", "token_embd.weight"),
        ("llama", "model.norm.weight", "output_norm.weight"),
        ("llama", "lm_head.weight", "output.weight"),
        ("llama", "model.layers.0.input_layernorm.weight", "blk.0.attn_norm.weight"),
        ("mistral", "model.layers.31.post_attention_layernorm.weight", "blk.31.ffn_norm.weight"),
        ("mistral", "model.layers.31.self_attn.o_proj.weight", "blk.31.attn_output.weight"),
        ("qwen2", "model.layers.3.self_attn.q_proj.bias", "blk.3.attn_q.bias"),
        ("qwen2", "model.layers.3.mlp.down_proj.weight", "blk.3.ffn_down.weight"),
        ("qwen3", "model.layers.3.self_attn.k_norm.weight", "blk.3.attn_k_norm.weight"),
        ("gemma3", "model.layers.1.post_attention_layernorm.weight", "blk.1.post_attention_norm.weight"),
        ("gemma3_text", "model.layers.1.pre_feedforward_layernorm.weight", "blk.1.ffn_norm.weight"),
        ("gemma3_text", "model.layers.1.post_feedforward_layernorm.weight", "blk.1.post_ffw_norm.weight"),
        ("llama", "model.layers.1.pre_feedforward_layernorm.weight", None),
        ("llama", "vision.patch.weight", None),
        ("llama", "model.layers.x.mlp.up_proj.weight", None),
    ],
)
def test_names(model_type: str, hf_name: str, expected: str | None) -> None:
    assert gguf_name(model_type, hf_name) == (expected or hf_name)


def test_one_file(tmp_path: Path) -> None:
    norm = {"model.norm.weight": np.array([0.5, -0.25]), "extra.weight": np.ones(3)}
    folder = write_folder(tmp_path, TIED, EMBED | norm)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.path == folder
    assert checkpoint.metadata["hf_config"]["vocab_size"] == 6
    assert set(checkpoint.tensors) == {"token_embd.weight", "output_norm.weight", "extra.weight"}
    stored = checkpoint.tensors["output_norm.weight"]
    assert stored.name == "output_norm.weight"
    assert stored.data.view(np.float32).tolist() == [0.5, -0.25]


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_gemma_norms_mean_the_same_as_in_gguf(tmp_path: Path, dtype: str) -> None:
    values = np.array([0.5, -0.25, 3.0, -1.0], np.float32)  # exact in all three
    content = {
        "F32": values.tobytes(),
        "F16": values.astype(np.float16).tobytes(),
        "BF16": (values.view(np.uint32) >> 16).astype(np.uint16).tobytes(),
    }[dtype]
    names = ["model.norm", "model.layers.0.self_attn.q_norm", "model.layers.0.input_layernorm"]
    header = {
        f"{name}.weight": {
            "dtype": dtype,
            "shape": [4],
            "data_offsets": [place * len(content), (place + 1) * len(content)],
        }
        for place, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3_text"}))
    (tmp_path / "model.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + content * len(names)
    )
    tensors = open_checkpoint(tmp_path).tensors
    for name in ("output_norm.weight", "blk.0.attn_q_norm.weight", "blk.0.attn_norm.weight"):
        assert tensors[name].format.name == "F32"
        assert tensors[name].shape == (4,)
        assert tensors[name].data.view(np.float32).tolist() == [1.5, 0.75, 4.0, 0.0]


POSITIONS = "model.layers.0.self_attn.position_ids"


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("dtype", ["I64", "I32", "U8", "BOOL", "F8_E4M3"])
def test_unused_tensors_of_other_dtypes_are_left_out_with_a_warning(
    tmp_path: Path, dtype: str, sharded: bool, caplog: pytest.LogCaptureFixture
) -> None:
    header = {"model.embed_tokens.weight": entry("F32", [6, 2], 0, 48), POSITIONS: entry(dtype, [2], 48, 64)}
    (tmp_path / "config.json").write_text(json.dumps(TIED))
    name = "one.safetensors" if sharded else "model.safetensors"
    (tmp_path / name).write_bytes(safetensors(header, bytes(64)))
    if sharded:
        index = {"weight_map": dict.fromkeys(header, name)}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert open_checkpoint(tmp_path).tensors.keys() == {"token_embd.weight"}
    assert POSITIONS in caplog.text
    assert str(tmp_path) in caplog.text


def test_needed_tensors_of_other_dtypes_are_refused(tmp_path: Path) -> None:
    needed = "model.layers.0.self_attn.q_proj.weight"
    header = {POSITIONS: entry("I64", [2], 0, 16), needed: entry("I8", [16], 16, 32)}
    (tmp_path / "config.json").write_text(json.dumps(TIED))
    (tmp_path / "model.safetensors").write_bytes(safetensors(header, bytes(32)))
    error = refused(tmp_path)
    assert error.field == f"tensor {needed}"
    assert "has dtype 'I8', which is not supported; supported: F32, F16, BF16" in str(error)


def write_sharded(folder: Path, weight_map: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(TIED))
    (folder / "a.safetensors").write_bytes(float_file(EMBED))
    (folder / "b.safetensors").write_bytes(float_file({"model.norm.weight": np.ones(2)}))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_shards(tmp_path: Path) -> None:
    names = {"model.embed_tokens.weight": "a.safetensors", "model.norm.weight": "b.safetensors"}
    tensors = open_checkpoint(write_sharded(tmp_path, names)).tensors
    assert {name: tensor.file.name for name, tensor in tensors.items()} == {
        "token_embd.weight": "a.safetensors",
        "output_norm.weight": "b.safetensors",
    }


@pytest.mark.parametrize(
    ("weight_map", "field", "words"),
    [
        ({"x": "a.safetensors"}, "weight_map 'x'", "a.safetensors has no such tensor"),
        ({"x": "../a.safetensors"}, "weight_map", "'../a.safetensors' is not the name"),
        ({"x": "/etc/passwd"}, "weight_map", "'/etc/passwd' is not the name"),
        ({"x": "config.json"}, "weight_map", "'config.json' is not the name"),
        ({"x": ["a.safetensors"]}, "weight_map", "is not the name"),
        ({"x": "gone.safetensors"}, "file", "No such file"),
        (["x"], "weight_map", "not an object"),
    ],
)
def test_bad_index(tmp_path: Path, weight_map: Any, field: str, words: str) -> None:
    error = refused(write_sharded(tmp_path, weight_map))
    assert error.field == field
    assert words in str(error)


@pytest.mark.parametrize(
    ("config", "field", "words"),
    [
        (TIED | {"model_type": "mamba"}, "model_type", "'mamba' is not supported; supported: llama, mistral"),
        ({}, "model_type", "None is not supported"),
        (TIED | {"model_type": ["llama"]}, "model_type", "not supported"),
        (
            TIED | {"quantization_config": {"quant_method": "gptq"}},
            "quantization_config.quant_method",
            "'gptq' weights are not supported; use",
        ),
        (TIED | {"quantization_config": "x"}, "quantization_config.quant_method", "'x' weights"),
        (TIED | {"tie_word_embeddings": "yes"}, "tie_word_embeddings", "not true or false"),
    ],
)
def test_bad_config(tmp_path: Path, config: Any, field: str, words: str) -> None:
    error = refused(write_folder(tmp_path, config, EMBED))
    assert error.field == field
    assert words in str(error)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"a": "\xff"}', b"[" * 100_000, b'{"a": 1, "a": 2}'])
def test_config_that_is_no_object(tmp_path: Path, content: bytes) -> None:
    folder = write_folder(tmp_path, TIED, EMBED)
    (folder / "config.json").write_bytes(content)
    assert refused(folder).path.endswith("config.json")


def test_folders_that_are_not_one(tmp_path: Path) -> None:
    assert refused(tmp_path).field == "config.json"
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert "open one of them, e.g. m.gguf" in str(refused(tmp_path))
    (tmp_path / "m.gguf").unlink()
    (tmp_path / "config.json").write_text(json.dumps(TIED))
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    assert refused(tmp_path).field == "model.safetensors"
    assert "never loaded; convert" in str(refused(tmp_path))
    (tmp_path / "other.safetensors").write_bytes(float_file(EMBED))
    assert "open the folder" in str(refused(tmp_path / "other.safetensors"))

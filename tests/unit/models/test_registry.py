# SPDX-License-Identifier: Apache-2.0
"""Case K2: the tensors of a file against those its architecture asks for."""

from __future__ import annotations

import logging

import pytest
from written_checkpoint import WrittenCheckpoint, gguf, tensor

from headrace.core.errors import ModelFileError
from headrace.models.registry import (
    ARCHITECTURES,
    check_tensors,
    forward_of,
    spec_from_checkpoint,
    tensor_shapes_of,
)


def complete(arch: str) -> WrittenCheckpoint:
    """A file of this architecture with every required tensor."""
    bare = gguf(arch)
    shapes = tensor_shapes_of(arch)(spec_from_checkpoint(bare)).required
    return WrittenCheckpoint(bare.metadata, {name: tensor(name, *shape) for name, shape in shapes.items()})


def check(checkpoint: WrittenCheckpoint) -> None:
    check_tensors(checkpoint, spec_from_checkpoint(checkpoint))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_complete_file_passes_without_a_word(arch: str, caplog: pytest.LogCaptureFixture) -> None:
    check(complete(arch))
    assert not caplog.records


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        ("llama", "output_norm.weight"),
        ("llama", "blk.6.ffn_down.weight"),
        ("qwen2", "blk.0.attn_q.bias"),
        ("qwen3", "blk.3.attn_k_norm.weight"),
        ("gemma3", "blk.3.post_ffw_norm.weight"),
    ],
)
def test_a_missing_tensor_is_named(arch: str, name: str) -> None:
    whole = complete(arch)
    part = {key: value for key, value in whole.tensors.items() if key != name}
    with pytest.raises(ModelFileError) as raised:
        check(WrittenCheckpoint(whole.metadata, part))
    assert raised.value.field == name


@pytest.mark.parametrize("shape", [(64, 63), (63, 64), (4096,), (64, 64, 1)])
def test_a_wrong_shape_is_named(shape: tuple[int, ...]) -> None:
    whole = complete("llama")
    name = "blk.2.attn_q.weight"
    with pytest.raises(ModelFileError, match=r"blk\.2\.attn_q\.weight: .*\(64, 64\)"):
        check(WrittenCheckpoint(whole.metadata, {**whole.tensors, name: tensor(name, *shape)}))


def test_a_wrong_shape_of_an_optional_tensor_is_named() -> None:
    whole = complete("llama")
    name = "blk.2.attn_q.bias"
    with pytest.raises(ModelFileError, match=r"blk\.2\.attn_q\.bias"):
        check(WrittenCheckpoint(whole.metadata, {**whole.tensors, name: tensor(name, 63)}))


def test_an_extra_tensor_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    whole = complete("llama")
    extra = {name: tensor(name, 3) for name in ("blk.0.surprise.weight", "blk.7.attn_q.weight")}
    with caplog.at_level(logging.WARNING):
        check(WrittenCheckpoint(whole.metadata, {**whole.tensors, **extra}))
    [record] = caplog.records
    assert "blk.0.surprise.weight" in record.getMessage()
    assert "blk.7.attn_q.weight" in record.getMessage()


def test_an_unknown_architecture() -> None:
    with pytest.raises(ValueError, match="llama, qwen2, qwen3, gemma3"):
        forward_of("mamba")

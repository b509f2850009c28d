# SPDX-License-Identifier: Apache-2.0
"""The table of architectures. A file in `arch/` is imported when a model first needs it; nothing else
in the project names an architecture to choose what to do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import Protocol, cast

from headrace.core.errors import ModelFileError
from headrace.models.layers.shapes import TensorShapes
from headrace.models.ops import Ops, Value, Weight
from headrace.models.spec import ModelSpec
from headrace.models.weights import Weights
from headrace.weights.checkpoint import Checkpoint

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")  # one file each in arch/

# Tensors that `spec_from_checkpoint` has already read, so that no forward pass asks for them.
SPEC_TENSORS = frozenset({"rope_freqs.weight"})

log = logging.getLogger(__name__)


class Forward(Protocol):
    def __call__(self, ops: Ops[Value, Weight], spec: ModelSpec, weights: Weights[Weight]) -> Value:
        """Logits (O, V) of the step that `ops` stands for."""
        ...


def forward_of(arch: str) -> Forward:
    return cast(Forward, import_module(f"headrace.models.arch.{_known(arch)}").forward)


def tensor_shapes_of(arch: str) -> Callable[[ModelSpec], TensorShapes]:
    module = import_module(f"headrace.models.arch.{_known(arch)}")
    return cast(Callable[[ModelSpec], TensorShapes], module.tensor_shapes)


def spec_from_checkpoint(checkpoint: Checkpoint) -> ModelSpec:
    """What the checkpoint's metadata says of the model; ModelFileError names the key that is at fault."""
    if "hf_config" in checkpoint.metadata:
        from headrace.models.spec_hf import spec_from_hf_config

        return spec_from_hf_config(checkpoint)
    from headrace.models.spec_gguf import spec_from_gguf

    return spec_from_gguf(checkpoint)


def check_tensors(checkpoint: Checkpoint, spec: ModelSpec) -> None:
    """Whatever the forward pass asks for is there with its shape; tensors it never asks for are logged."""
    shapes = tensor_shapes_of(spec.arch)(spec)
    for name, shape in shapes.required.items():
        if name not in checkpoint.tensors:
            raise ModelFileError(
                checkpoint.path,
                name,
                f"tensor is missing; this {spec.arch} model needs it as {shape}",
            )
    for name, shape in (shapes.optional | shapes.required).items():
        stored = checkpoint.tensors.get(name)
        if stored is not None and stored.shape != shape:
            raise ModelFileError(
                checkpoint.path, name, f"tensor has shape {stored.shape}; the metadata asks for {shape}"
            )
    known = shapes.required.keys() | shapes.optional.keys() | SPEC_TENSORS
    extra = sorted(checkpoint.tensors.keys() - known)
    if extra:
        log.warning(
            "%s: %d tensors are not used by a %s model: %s",
            checkpoint.path,
            len(extra),
            spec.arch,
            ", ".join(extra[:8]) + (", ..." if len(extra) > 8 else ""),
        )


def _known(arch: str) -> str:
    if arch not in ARCHITECTURES:
        raise ValueError(f"unknown architecture {arch!r}; known: {', '.join(ARCHITECTURES)}")
    return arch

# SPDX-License-Identifier: Apache-2.0
"""Random weights of every stored format, and whole models of any shape made of them, held in memory: what
backends are compared on where no file and no transformers model is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.kernels.ref.dequantize import dequantize
from headrace.models.registry import spec_from_checkpoint, tensor_shapes_of
from headrace.weights.checkpoint import StoredTensor
from headrace.weights.formats import BY_NAME, QuantFormat

Bytes = npt.NDArray[np.uint8]

HERE = Path("random")
# Where each format's qblock keeps its float16 scales, so that random bytes become plausible weights.
HALF_SCALES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}


def random_bytes(row: QuantFormat, num_elements: int, rng: np.random.Generator) -> Bytes:
    """Floats of spread 1; or any codes at all, with scales of 0.001 to 0.02."""
    if row.is_float:
        return float_bytes(row, rng.normal(size=num_elements))
    num_qblocks = num_elements // row.qblock_size
    data = rng.integers(0, 256, (num_qblocks, row.qblock_bytes), dtype=np.uint8)
    for place in HALF_SCALES.get(row.name, ()):
        scale = rng.uniform(0.001, 0.02, num_qblocks).astype(np.float16)
        data[:, place : place + 2] = scale.view(np.uint8).reshape(-1, 2)
    if row.name == "MXFP4":
        data[:, 0] = rng.integers(118, 124, num_qblocks)
    return data.reshape(-1)


def float_bytes(row: QuantFormat, values: npt.NDArray[np.floating]) -> Bytes:
    if row.name == "BF16":
        return np.ascontiguousarray(values.astype(np.float32).view(np.uint16)[1::2]).view(np.uint8)
    return values.astype(np.float16 if row.name == "F16" else np.float32).view(np.uint8)


def random_matrix(
    name: str, row: QuantFormat, shape: tuple[int, ...], rng: np.random.Generator
) -> StoredTensor:
    """Rows that keep the size of what they multiply, about."""
    num_elements = int(np.prod(shape))
    if row.is_float:
        return stored(name, row, shape, float_bytes(row, rng.normal(size=num_elements) * shape[-1] ** -0.5))
    data = random_bytes(row, num_elements, rng)
    gain = (dequantize(row, data, num_elements) ** 2).mean() ** 0.5 * shape[-1] ** 0.5
    qblocks = data.reshape(-1, row.qblock_bytes)
    for place in HALF_SCALES.get(row.name, ()):
        halves = np.ascontiguousarray(qblocks[:, place : place + 2]).view(np.float16)
        qblocks[:, place : place + 2] = (halves / gain).astype(np.float16).view(np.uint8)
    return stored(name, row, shape, data)


def stored(name: str, row: QuantFormat, shape: tuple[int, ...], data: Bytes) -> StoredTensor:
    return StoredTensor(name, shape, row, data, HERE)


@dataclass(frozen=True)
class RandomModel:
    """A `weights.checkpoint.Checkpoint`."""

    metadata: Mapping[str, object]
    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    path: Path = HERE


def random_model(
    arch: str,
    *,
    vocab_size: int = 301,
    head: str | None = None,
    matrices: str = "F32",
    formats: Mapping[str, str] | None = None,
    seed: int = 0,
    **sizes: object,
) -> RandomModel:
    """Two layers of width 64 unless `sizes` say otherwise (keys with `__` for `.`). `head`: the format of a
    head of its own; `matrices`: of all matrices but those whose name holds a key of `formats`."""
    keys = {
        "context_length": 4096,
        "block_count": 2,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    keys |= {key.replace("__", "."): value for key, value in sizes.items()}
    if "attention.key_length" in keys:
        keys["attention.value_length"] = keys["attention.key_length"]
    model = RandomModel({"general.architecture": arch} | {f"{arch}.{key}": keys[key] for key in keys})
    rng = np.random.default_rng(seed)

    def add(name: str, shape: tuple[int, ...]) -> None:
        chosen = [value for part, value in (formats or {}).items() if part in name]
        row = BY_NAME[chosen[0] if chosen else head if name == "output.weight" and head else matrices]
        if len(shape) == 1:
            values = rng.uniform(0.5, 1.5, shape) if "norm" in name else rng.normal(0, 0.2, shape)
            model.tensors[name] = stored(name, BY_NAME["F32"], shape, float_bytes(BY_NAME["F32"], values))
        else:
            model.tensors[name] = random_matrix(name, row, shape, rng)

    width = keys["embedding_length"]
    assert isinstance(width, int)
    add("token_embd.weight", (vocab_size, width))
    if head is not None:
        add("output.weight", (vocab_size, width))
    for name, shape in tensor_shapes_of(arch)(spec_from_checkpoint(model)).required.items():
        if name not in model.tensors:
            add(name, shape)
    return model

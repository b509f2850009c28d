# SPDX-License-Identifier: Apache-2.0
"""A folder in Hugging Face's layout as a Checkpoint: `config.json` beside `model.safetensors`, or beside
shards that `model.safetensors.index.json` lists. Tensors get GGUF's names and GGUF's meaning: Gemma's
norms, stored as weight - 1, are given as weight."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from headrace.core.errors import ModelFileError
from headrace.weights.checkpoint import StoredTensor
from headrace.weights.formats import BY_NAME
from headrace.weights.json_text import read_json_file
from headrace.weights.names import LAYER_NAMES, gguf_name
from headrace.weights.safetensors import Safetensors, open_safetensors
from headrace.weights.tied_head import settle_head

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
GEMMA_TYPES = ("gemma3", "gemma3_text")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class HfCheckpoint:
    path: Path
    metadata: Mapping[str, object]  # hf_config: config.json, its tie_word_embeddings settled
    tensors: Mapping[str, StoredTensor]


def open_hf_folder(folder: Path) -> HfCheckpoint:
    config_path = folder / CONFIG
    if not config_path.exists():
        raise ModelFileError(folder, CONFIG, f"is missing: {_folder_advice(folder)}")
    config = read_json_file(config_path)
    model_type = _model_type(config_path, config)
    _refuse_quantised(config_path, config)
    tensors = {
        name: _as_gguf_means(model_type, name, tensor)
        for name, tensor in _named_tensors(model_type, _usable_tensors(folder, model_type)).items()
    }
    tied, tensors = settle_head(folder, config, model_type, tensors)
    metadata = {"hf_config": MappingProxyType({**config, "tie_word_embeddings": tied})}
    return HfCheckpoint(folder, MappingProxyType(metadata), MappingProxyType(tensors))


def _model_type(config_path: Path, config: Mapping[str, object]) -> str:
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in LAYER_NAMES:
        return model_type
    raise ModelFileError(
        config_path, "model_type", f"{model_type!r} is not supported; supported: {', '.join(LAYER_NAMES)}"
    )


def _refuse_quantised(config_path: Path, config: Mapping[str, object]) -> None:
    quantisation = config.get("quantization_config")
    if quantisation is None:
        return
    method = quantisation.get("quant_method") if isinstance(quantisation, dict) else quantisation
    message = f"{method!r} weights are not supported; use the F32, F16 or BF16 model or a GGUF file"
    raise ModelFileError(config_path, "quantization_config.quant_method", message)


def _usable_tensors(folder: Path, model_type: str) -> Mapping[str, StoredTensor]:
    """Without those of a dtype that is not supported, which must be ones that no forward pass has a name for,
    such as buffers of positions."""
    content = _read_tensors(folder)
    for name, error in content.unsupported.items():
        if gguf_name(model_type, name) != name:
            raise error
    if content.unsupported:
        log.warning(
            "%s: left out, being unused and of a dtype that is not supported: %s",
            folder,
            ", ".join(sorted(content.unsupported)),
        )
    return content.tensors


def _read_tensors(folder: Path) -> Safetensors:
    """All tensors by Hugging Face's names. Like transformers, one whole file goes before an index."""
    if (folder / SINGLE).exists():
        return open_safetensors(folder / SINGLE)
    if (folder / INDEX).exists():
        return _read_shards(folder)
    raise ModelFileError(folder, SINGLE, f"is missing, and so is {INDEX}: {_folder_advice(folder)}")


def _read_shards(folder: Path) -> Safetensors:
    index = folder / INDEX
    weight_map = read_json_file(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelFileError(index, "weight_map", "is missing or not an object")
    shards: dict[str, Safetensors] = {}
    tensors: dict[str, StoredTensor] = {}
    unsupported: dict[str, ModelFileError] = {}
    for name, value in weight_map.items():
        file_name = _plain_name(index, value)
        if file_name not in shards:
            shards[file_name] = open_safetensors(folder / file_name)
        shard = shards[file_name]
        if name in shard.tensors:
            tensors[name] = shard.tensors[name]
        elif name in shard.unsupported:
            unsupported[name] = shard.unsupported[name]
        else:
            raise ModelFileError(index, f"weight_map {name!r}", f"{file_name} has no such tensor")
    return Safetensors(tensors, unsupported)


def _plain_name(index: Path, value: object) -> str:
    """A file of this folder and no other: an index must not reach elsewhere on the machine."""
    if isinstance(value, str) and value.endswith(".safetensors") and not set(value) & {"/", "\\", "\0"}:
        return value
    raise ModelFileError(index, "weight_map", f"{value!r} is not the name of a safetensors file beside it")


def _named_tensors(model_type: str, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    return {
        name: StoredTensor(name, tensor.shape, tensor.format, tensor.data, tensor.file)
        for name, tensor in ((gguf_name(model_type, tensor.name), tensor) for tensor in tensors.values())
        if not name.endswith(".rotary_emb.inv_freq")  # computed from the config; old files store it too
    }


def _as_gguf_means(model_type: str, name: str, tensor: StoredTensor) -> StoredTensor:
    if model_type not in GEMMA_TYPES or not name.endswith("norm.weight"):
        return tensor
    stored = _float32(tensor)
    weight = (stored + np.float32(1)).view(np.uint8)
    weight.flags.writeable = False
    return StoredTensor(name, tensor.shape, BY_NAME["F32"], weight, tensor.file)


def _float32(tensor: StoredTensor) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """(n,) values of a float tensor. `kernels.ref.dequantize` may not be imported here: it lies above."""
    if tensor.format.name == "BF16":
        return (tensor.data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return tensor.data.view({"F32": "<f4", "F16": "<f2"}[tensor.format.name]).astype(np.float32)


def _folder_advice(folder: Path) -> str:
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        return f"the folder cannot be read ({error.strerror})"
    gguf = [name for name in names if name.endswith(".gguf")]
    if gguf:
        return f"the folder holds GGUF files; open one of them, e.g. {gguf[0]}"
    if any(name.endswith((".bin", ".pt", ".pth")) for name in names):
        return "pickled weights (.bin, .pt) are never loaded; convert them to safetensors"
    return f"a model folder has {CONFIG} and {SINGLE}"

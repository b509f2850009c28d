# SPDX-License-Identifier: Apache-2.0
"""What is in a checkpoint, in a few plain values: for people and for `headrace info`. Reads no tensor
data, and takes any architecture: whether Headrace can run it is not asked here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.weights.checkpoint import Checkpoint, StoredTensor
from headrace.weights.tokenizer_summary import TokenizerSummary, summarise_tokenizer

# The same fact in GGUF (behind `<architecture>.`) and in config.json
GGUF_KEYS = {
    "context_length": "context_length",
    "num_layers": "block_count",
    "d_model": "embedding_length",
    "d_ff": "feed_forward_length",
    "num_heads": "attention.head_count",
    "num_kv_heads": "attention.head_count_kv",
}
HF_KEYS = {
    "context_length": "max_position_embeddings",
    "num_layers": "num_hidden_layers",
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
}


@dataclass(frozen=True, slots=True)
class FormatShare:
    """All tensors of one format together."""

    format: str
    num_tensors: int
    num_elements: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    path: str
    container: str  # GGUF v3, safetensors
    num_files: int
    file_bytes: int
    architecture: str | None
    name: str | None
    num_parameters: int
    num_tensors: int
    formats: tuple[FormatShare, ...]  # largest first
    geometry: Mapping[str, int | None]  # by the keys of GGUF_KEYS; None: the file does not say one number
    tokenizer: TokenizerSummary
    chat_template: str | None


def summarise(checkpoint: Checkpoint) -> ModelSummary:
    tensors = checkpoint.tensors.values()
    config = checkpoint.metadata.get("hf_config")
    if isinstance(config, Mapping):
        container, architecture, name = "safetensors", config.get("model_type"), config.get("_name_or_path")
        geometry = {fact: config.get(key) for fact, key in HF_KEYS.items()}
    else:
        metadata = checkpoint.metadata
        container = f"GGUF v{getattr(checkpoint, 'version', '?')}"
        architecture, name = metadata.get("general.architecture"), metadata.get("general.name")
        geometry = {fact: metadata.get(f"{architecture}.{key}") for fact, key in GGUF_KEYS.items()}
    files = {tensor.file for tensor in tensors} or {checkpoint.path}
    tokenizer, chat_template = summarise_tokenizer(checkpoint)
    return ModelSummary(
        path=str(checkpoint.path),
        container=container,
        num_files=len(files),
        file_bytes=sum(file.stat().st_size for file in files),
        architecture=_text(architecture),
        name=_text(name),
        num_parameters=sum(tensor.num_elements for tensor in tensors),
        num_tensors=len(tensors),
        formats=_shares(checkpoint.tensors),
        geometry={fact: value if type(value) is int else None for fact, value in geometry.items()},
        tokenizer=tokenizer,
        chat_template=chat_template,
    )


def _shares(tensors: Mapping[str, StoredTensor]) -> tuple[FormatShare, ...]:
    by_format: dict[str, list[StoredTensor]] = {}
    for tensor in tensors.values():
        by_format.setdefault(tensor.format.name, []).append(tensor)
    shares = (
        FormatShare(
            format_name, len(group), sum(t.num_elements for t in group), sum(t.data.nbytes for t in group)
        )
        for format_name, group in by_format.items()
    )
    return tuple(sorted(shares, key=lambda share: -share.num_bytes))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None

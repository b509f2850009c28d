# SPDX-License-Identifier: Apache-2.0
"""A whole model folder without a download: random weights of more rows than its tokenizer has tokens."""

from __future__ import annotations

from pathlib import Path

from tiny_models import save_hf
from tokenizers import Tokenizer, decoders, models

NUM_TOKENS = 257


def write_model(folder: Path) -> Path:
    """The tiny Llama of 301 rows under a tokenizer of 256 bytes and an end token."""
    texts = [chr(0x100 + byte) for byte in range(256)]  # stands for the alphabet of byte-level vocabularies
    tokenizer = Tokenizer(models.BPE({text: token for token, text in enumerate(texts)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    save_hf("llama", folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder

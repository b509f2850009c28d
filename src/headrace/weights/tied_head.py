# SPDX-License-Identifier: Apache-2.0
"""Which matrix makes the logits where `tie_word_embeddings` and the stored tensors may disagree.

The rule is that of transformers 5:
- tied, no head stored: the embedding. Tied, only a head stored: it serves as the embedding too.
- tied, both stored and equal: the embedding. Both stored and different: the stored head, and a warning.
- not tied: the stored head; without one, an error, for there is nothing to make logits with."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from headrace.core.errors import ModelFileError
from headrace.weights.checkpoint import StoredTensor

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
TIED_BY_DEFAULT = ("gemma3", "gemma3_text")

log = logging.getLogger(__name__)


def settle_head(
    folder: Path, config: Mapping[str, object], model_type: str, tensors: Mapping[str, StoredTensor]
) -> tuple[bool, dict[str, StoredTensor]]:
    """Whether logits use the embedding, and the tensors that this leaves."""
    tied = config.get("tie_word_embeddings", model_type in TIED_BY_DEFAULT)
    if not isinstance(tied, bool):
        raise ModelFileError(folder / "config.json", "tie_word_embeddings", f"is {tied!r}, not true or false")
    settled = dict(tensors)
    embedding, head = tensors.get(EMBEDDING), tensors.get(HEAD)
    if not tied:
        if head is None:
            message = "is missing and tie_word_embeddings is false, so nothing makes the logits"
            raise ModelFileError(folder, "lm_head.weight", f"{message}; set it to true if the model is tied")
        return False, settled
    if head is None:
        return True, settled
    if embedding is not None and not _equal(embedding, head):
        log.warning(
            "%s: tie_word_embeddings is true, but lm_head.weight differs from the embedding; "
            "lm_head.weight is used",
            folder,
        )
        return False, settled
    if embedding is None:
        settled[EMBEDDING] = replace(head, name=EMBEDDING)
    del settled[HEAD]
    return True, settled


def _equal(one: StoredTensor, other: StoredTensor) -> bool:
    return one.format == other.format and one.shape == other.shape and np.array_equal(one.data, other.data)

# SPDX-License-Identifier: Apache-2.0
"""Which tokens end an answer, apart from those a model file names by id. Files often name one of
several, so markers that are known to close a turn or a text count wherever they are control tokens."""

from __future__ import annotations

from collections.abc import Mapping

END_MARKERS = frozenset(
    {
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|eot|>",
        "<|eom|>",
        "<|end_of_turn|>",
        "<|END_OF_TURN_TOKEN|>",
        "<end_of_turn>",
        "<turn|>",
        "<end_of_utterance>",
        "<｜end▁of▁sentence｜>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "</s>",
        "<eos>",
        # code models: the next file or repository begins
        "<|fim_pad|>",
        "<|repo_name|>",
        "<|file_sep|>",
    }
)

# Also an HTML tag: where a file calls it an ordinary or user-defined token, it ends nothing.
AMBIGUOUS_MARKER = "</s>"

# In these formats "<|end|>" closes one message of an answer that goes on.
HARMONY_MARKERS = ("<|return|>", "<|call|>")


def end_ids(control: Mapping[str, int]) -> frozenset[int]:
    """Ids of the markers among a vocabulary's control tokens (text -> id) that end an answer."""
    found = {text: control[text] for text in END_MARKERS if text in control}
    if all(text in control for text in HARMONY_MARKERS):
        found.pop("<|end|>", None)
    return frozenset(found.values())

# SPDX-License-Identifier: Apache-2.0
"""How many tokens a request took. A prompt with several answers counts once."""

from __future__ import annotations

from typing import TypedDict


class PromptDetails(TypedDict):
    cached_tokens: int


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


def usage_of(num_prompt: int, num_output: int, num_cached: int) -> Usage:
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }

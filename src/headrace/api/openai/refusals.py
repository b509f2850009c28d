# SPDX-License-Identifier: Apache-2.0
"""Body fields that are known but not served: ones that ask for nothing we would do differently are let
through, the others are refused by name. A field is never dropped in silence."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from headrace.core.errors import RequestError

# Sent by OpenAI's own clients; they say who asks or how to bill, and change no answer.
_HARMLESS = frozenset(
    {
        "user",
        "metadata",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
        "parallel_tool_calls",  # says something about tools only, which are refused
    }
)

# Values that ask for nothing, beside null.
_OFF: Mapping[str, tuple[object, ...]] = {
    "store": (False,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "best_of": (1,),
    "suffix": ("",),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "spaces_between_special_tokens": (True,),
    "bad_words": ([],),
    "documents": ([],),
    "include_reasoning": (True,),
    "return_tokens_as_token_ids": (False,),
    "vllm_xargs": ({},),
    "mm_processor_kwargs": ({},),
    "media_io_kwargs": ({},),
    "images": ([],),
    "add_special_tokens": (False,),  # of chat: the template writes the special tokens
    "echo": (False,),  # of chat
    "cache_prompt": (True, False),
    "separate_reasoning": (True,),
    "stream_reasoning": (True,),
    "no_stop_trim": (False,),
    "return_hidden_states": (False,),
}

# Known to clients of other servers; nothing but null is let through.
# fmt: off
_KNOWN = frozenset({
    "allowed_token_ids", "audio", "chat_template", "custom_logit_processor", "ebnf",
    "grammar", "guided_choice", "guided_decoding_backend", "guided_grammar", "guided_json",
    "guided_regex", "guided_whitespace_pattern", "image_url", "json_schema", "kv_transfer_params",
    "logprob_token_ids", "lora", "lora_path", "lora_request", "moderation", "prediction",
    "prompt_embeds", "reasoning", "reasoning_effort", "regex", "repetition_detection", "samplers",
    "session_id", "session_params", "stop_regex", "stream_interval", "structural_tag",
    "structured_outputs", "thinking_token_budget", "truncate_prompt_tokens", "truncation_side",
    "verbosity", "video_url", "web_search_options", "xtc_probability", "xtc_threshold",
    "dry_multiplier", "typical_p", "mirostat", "watermarking",
})
# fmt: on


def check_extra_fields(body: Mapping[str, object], served: Iterable[str]) -> dict[str, object]:
    """The body's served fields. Raises RequestError naming the first one that asks for what is not here."""
    served = frozenset(served)
    for name, value in body.items():
        if name in served or name in _HARMLESS:
            continue
        off = _OFF.get(name, ())
        if name not in _KNOWN and name not in _OFF:
            raise RequestError(f"Unknown field {_short(name)}", param=_short(name), code="unknown_field")
        if value is not None and not any(value == one and type(value) is type(one) for one in off):
            allowed = " or ".join(map(json.dumps, (*off, None)))
            raise RequestError(
                f"{name} is not supported yet; leave it out (or send {allowed})",
                param=name,
                code="unsupported_field",
            )
    return {name: value for name, value in body.items() if name in served}


def _short(name: str) -> str:
    return name if len(name) <= 64 else name[:61] + "..."

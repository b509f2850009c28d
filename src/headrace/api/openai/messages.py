# SPDX-License-Identifier: Apache-2.0
"""Chat messages as clients send them: which roles and fields are taken, and none is dropped that says
something. What contents may be is for `text.messages`, which every chat goes through."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence

from headrace.core.errors import RequestError

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
MAX_MESSAGES = 4096

# What templates may read.
_FIELDS = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content"}
)
# What SDKs send back with an answer of theirs, empty or null; anything in them is refused.
_EMPTY_FIELDS = frozenset({"refusal", "audio", "annotations", "function_call"})

Message = Mapping[str, object]


def parse_messages(value: object) -> list[Message]:
    """Raises RequestError naming the message and the field."""
    if not isinstance(value, list) or not value:
        raise _refused("messages", "must be a list of at least one message")
    if len(value) > MAX_MESSAGES:
        raise _refused("messages", f"are {len(value)}; at most {MAX_MESSAGES} are taken")
    return [_message(f"messages[{i}]", item) for i, item in enumerate(value)]


def text_of(messages: Sequence[Message]) -> str:
    """Roughly what they say, to judge its length before templating."""
    return "".join(str(message.get("content")) for message in messages)


def check_continuable(messages: Sequence[Message]) -> None:
    if messages[-1]["role"] != "assistant":
        raise RequestError(
            "continue_final_message needs an assistant message at the end to continue",
            param="continue_final_message",
        )


def _message(place: str, item: object) -> Message:
    if not isinstance(item, dict):
        raise _refused(place, f"must be an object with role and content, got {reprlib.repr(item)}")
    role = item.get("role")
    if not isinstance(role, str) or role not in ROLES:
        known = ", ".join(sorted(ROLES))
        raise _refused(f"{place}.role", f"must be one of {known}, got {reprlib.repr(role)}")
    for name, value in item.items():
        if name in _FIELDS or value is None or (name in _EMPTY_FIELDS and value in ([], "")):
            continue
        what = "is not supported yet" if name in _EMPTY_FIELDS else "is not a field of a text message"
        raise _refused(f"{place}.{name[:64]}", what)
    kept = {name: value for name, value in item.items() if name in _FIELDS and value is not None}
    return {**kept, "role": "system" if role == "developer" else role}


def _refused(place: str, what: str) -> RequestError:
    return RequestError(f"{place} {what}", param="messages")

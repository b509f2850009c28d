# SPDX-License-Identifier: Apache-2.0
"""Chat messages as clients send them, made into what a chat template reads: a role and one string.
Nothing is dropped: what a text model here cannot read is refused by its place in the list."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence

from headrace.core.errors import RequestError

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
MAX_MESSAGES = 4096

# Kept for the template beside role and content.
_TEXT_FIELDS = frozenset({"name", "tool_call_id", "reasoning", "reasoning_content"})
# What SDKs send back with an answer of theirs; empty or null there.
_EMPTY_FIELDS = frozenset({"refusal", "audio", "annotations", "tool_calls", "function_call"})

Message = Mapping[str, object]


def parse_messages(value: object) -> list[Message]:
    """Raises RequestError naming the message and the field."""
    if not isinstance(value, list) or not value:
        raise RequestError("messages must be a list of at least one message", param="messages")
    if len(value) > MAX_MESSAGES:
        raise RequestError(f"messages: at most {MAX_MESSAGES} are taken, got {len(value)}", param="messages")
    return [_message(f"messages[{i}]", item) for i, item in enumerate(value)]


def _message(place: str, item: object) -> Message:
    if not isinstance(item, dict):
        raise _refused(place, f"must be an object with role and content, got {reprlib.repr(item)}")
    role = item.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise _refused(
            f"{place}.role", f"must be one of {', '.join(sorted(ROLES))}, got {reprlib.repr(role)}"
        )
    message: dict[str, object] = {"role": "system" if role == "developer" else role}
    message["content"] = _content(f"{place}.content", item, role == "assistant")
    for name, value in item.items():
        if name in ("role", "content") or value is None:
            continue
        if name in _TEXT_FIELDS and isinstance(value, str):
            message[name] = value
        elif not (name in _EMPTY_FIELDS and value in ([], "")):
            what = "is not supported yet" if name in _EMPTY_FIELDS else "is not a field of a text message"
            raise _refused(f"{place}.{name[:64]}", what)
    return message


def _content(place: str, item: Mapping[str, object], may_be_null: bool) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part(f"{place}[{i}]", part) for i, part in enumerate(content))
    if content is None and may_be_null:
        return ""
    raise _refused(place, f"must be a string or a list of parts, got {reprlib.repr(content)}")


def _part(place: str, part: object) -> str:
    if not isinstance(part, dict):
        raise _refused(
            place, f"must be an object such as {{'type': 'text', 'text': ...}}, got {reprlib.repr(part)}"
        )
    kind = part.get("type")
    field = {"text": "text", "refusal": "refusal"}.get(kind if isinstance(kind, str) else "")
    if field is None:
        raise _refused(f"{place}.type", f"this model reads text parts only, got {reprlib.repr(kind)}")
    text = part.get(field)
    if not isinstance(text, str):
        raise _refused(f"{place}.{field}", f"must be a string, got {reprlib.repr(text)}")
    return text


def check_continuable(messages: Sequence[Message]) -> None:
    if messages[-1]["role"] != "assistant":
        raise RequestError(
            "continue_final_message needs an assistant message at the end to continue",
            param="continue_final_message",
        )


def _refused(place: str, what: str) -> RequestError:
    return RequestError(f"{place} {what}", param=place)

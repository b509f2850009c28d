# SPDX-License-Identifier: Apache-2.0
"""Brings chat messages into the one form that templates get: text content as one string, arguments of
tool calls as objects. What cannot be shown to the model is refused, never dropped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from headrace.core.errors import RequestError
from headrace.text.tokenizer import check_unicode

PARAM = "messages"
MAX_DEPTH = 64
TEXT_PARTS = ("text", "input_text", "output_text")


class JsonObject(dict[str, object]):
    """Arguments of a tool call. Templates read it as an object or write it out as JSON text: both are
    in use."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, other: str) -> str:
        return str(self) + other

    def __radd__(self, other: str) -> str:
        return other + str(self)


def normalise_messages(messages: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Raises RequestError(param="messages") naming the message at fault."""
    if not messages:
        raise RequestError("messages must hold at least one message", param=PARAM)
    return [_normalise(f"messages[{place}]", message) for place, message in enumerate(messages)]


def _normalise(name: str, message: object) -> dict[str, object]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{name} must be an object with role and content", param=PARAM)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f"{name}.role must be a non-empty string", param=PARAM)
    plain = {str(key): plain_value(f"{name}.{key}", value) for key, value in message.items()}
    plain["content"] = _content(name, plain)
    if plain.get("tool_calls") is None:
        plain.pop("tool_calls", None)
    else:
        plain["tool_calls"] = _tool_calls(f"{name}.tool_calls", plain["tool_calls"])
    return plain


def _content(name: str, message: Mapping[str, object]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None:
        if message["role"] == "assistant" and any(
            message.get(key) for key in ("tool_calls", "function_call", "reasoning_content", "reasoning")
        ):
            return ""
        raise RequestError(
            f"{name}.content is missing (only an assistant message with tool_calls may lack it)", param=PARAM
        )
    if not isinstance(content, list):
        raise RequestError(f"{name}.content must be a string or a list of text parts", param=PARAM)
    return "".join(_part_text(f"{name}.content[{place}]", part) for place, part in enumerate(content))


def _part_text(name: str, part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise RequestError(f"{name} must be an object with type and text", param=PARAM)
    if part.get("type") not in TEXT_PARTS:
        raise RequestError(
            f"{name}.type {part.get('type')!r} is not supported by this model; supported: text", param=PARAM
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(f"{name}.text must be a string", param=PARAM)
    return text


def _tool_calls(name: str, calls: object) -> list[object]:
    if not isinstance(calls, list):
        raise RequestError(f"{name} must be a list", param=PARAM)
    return [_tool_call(f"{name}[{place}]", call) for place, call in enumerate(calls)]


def _tool_call(name: str, call: object) -> dict[str, object]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise RequestError(f"{name} must be an object with a function", param=PARAM)
    if not isinstance(function.get("name"), str):
        raise RequestError(f"{name}.function.name must be a string", param=PARAM)
    arguments = _arguments(f"{name}.function.arguments", function.get("arguments"))
    return {**call, "function": {**function, "arguments": arguments}}


def _arguments(name: str, arguments: object) -> JsonObject:
    if isinstance(arguments, str) and arguments.strip():
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise RequestError(f"{name} is not valid JSON ({error})", param=PARAM) from None
    if isinstance(arguments, dict):
        return JsonObject(arguments)
    if arguments is None or arguments == "":
        return JsonObject()
    raise RequestError(f"{name} must be a JSON object, as an object or as text", param=PARAM)


def plain_value(name: str, value: object, depth: int = 0) -> object:
    """A copy made of dicts, lists, strings and numbers only, so that a template can reach no other object."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        check_unicode(value, param=_field(name))
        return str(value)
    if depth >= MAX_DEPTH:
        raise RequestError(f"{name} is nested more than {MAX_DEPTH} deep", param=_field(name))
    if isinstance(value, Mapping):
        for key in value:
            check_unicode(str(key), param=_field(name))
        return {str(key): plain_value(name, item, depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [plain_value(name, item, depth + 1) for item in value]
    message = f"{name} holds a {type(value).__name__}, which is no JSON value"
    raise RequestError(message, param=_field(name))


def _field(name: str) -> str:
    """The body field of a place such as `messages[2].content`."""
    return name.split("[")[0].split(".")[0]

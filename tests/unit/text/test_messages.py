# SPDX-License-Identifier: Apache-2.0
"""Messages in the forms that clients send."""

from __future__ import annotations

import pytest

from headrace.core.errors import RequestError
from headrace.text.messages import normalise_messages

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_parts_are_joined(role: str) -> None:
    parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    assert normalise_messages([{"role": role, "content": parts}]) == [{"role": role, "content": "AB"}]


@pytest.mark.parametrize("content", [{"content": None}, {}, {"content": ""}])
def test_a_tool_call_needs_no_content(content: dict[str, object]) -> None:
    (message,) = normalise_messages([{"role": "assistant", **content, "tool_calls": [CALL]}])
    assert message["content"] == ""
    assert message["tool_calls"][0]["function"]["arguments"] == {"a": 1}  # type: ignore[index]


def test_arguments_write_themselves_as_json() -> None:
    (message,) = normalise_messages([{"role": "assistant", "tool_calls": [CALL]}])
    arguments = message["tool_calls"][0]["function"]["arguments"]  # type: ignore[index]
    assert str(arguments) == '{"a": 1}'
    assert "x" + arguments + "y" == 'x{"a": 1}y'


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "at least one message"),
        (["hi"], r"messages\[0\] must be an object"),
        ([{"content": "hi"}], r"messages\[0\]\.role"),
        ([{"role": 5, "content": "hi"}], r"messages\[0\]\.role"),
        ([{"role": "user"}], r"messages\[0\]\.content is missing"),
        ([{"role": "user", "content": None}], r"messages\[0\]\.content is missing"),
        ([{"role": "assistant", "content": None}], r"messages\[0\]\.content is missing"),
        ([{"role": "user", "content": 5}], r"messages\[0\]\.content must be a string or a list"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\]\.type 'image_url'"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\]\.text must be a string"),
        ([{"role": "user", "content": [7]}], r"content\[0\] must be an object"),
        ([{"role": "user", "content": "a\ud83d"}], "lone surrogate"),
        ([{"role": "user", "content": [{"type": "text", "text": "\ud83d"}]}], "lone surrogate"),
        ([{"role": "user", "content": "a", "name": object()}], "no JSON value"),
        ([{"role": "assistant", "tool_calls": "x", "content": ""}], "tool_calls must be a list"),
        ([{"role": "assistant", "tool_calls": [{}]}], r"tool_calls\[0\] must be an object with a function"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            "not valid JSON",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}],
            "must be a JSON object",
        ),
    ],
)
def test_what_cannot_be_shown_is_refused(messages: list[dict[str, object]], reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        normalise_messages(messages)
    assert caught.value.param == "messages"
    assert caught.value.status == 400


def test_deep_nesting_is_refused() -> None:
    value: object = "x"
    for _ in range(200):
        value = [value]
    with pytest.raises(RequestError, match="nested"):
        normalise_messages([{"role": "user", "content": "a", "extra": value}])

# SPDX-License-Identifier: Apache-2.0
"""From messages to token ids, through the model's chat template."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from headrace.api.openai.chat_fields import ChatFields
from headrace.api.openai.messages import Message, check_continuable, parse_messages, text_of
from headrace.api.openai.prompts import Prompt, beside_loop_if_long, check_could_fit
from headrace.api.served_model import ServedModel
from headrace.core.errors import RequestError
from headrace.text.chat_template import ChatTemplate

# What the template is given from other fields.
_RESERVED = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message", "bos_token", "eos_token"}
)


async def encode_chat(fields: ChatFields, model: ServedModel) -> Prompt:
    if model.chat_template is None:
        raise RequestError(
            "This model has no chat template: use /v1/completions, or serve it with --chat-template FILE",
            code="no_chat_template",
        )
    messages = parse_messages(fields.messages)
    encode = functools.partial(_encode, model.chat_template, messages, fields)
    text = text_of(messages)

    def work() -> Prompt:
        check_could_fit(text, model, "messages")
        return Prompt(ids=tuple(encode()), text=None)

    return await beside_loop_if_long(len(text), work)


def _encode(template: ChatTemplate, messages: list[Message], fields: ChatFields) -> list[int]:
    continues = bool(fields.continue_final_message)
    if continues:
        check_continuable(messages)
    if continues and fields.add_generation_prompt:
        raise RequestError(
            "add_generation_prompt begins an answer and continue_final_message goes on with one: choose",
            param="continue_final_message",
        )
    begins = not continues if fields.add_generation_prompt is None else fields.add_generation_prompt
    return template.encode(
        messages,
        tools=None,
        add_generation_prompt=begins,
        continue_final_message=continues,
        **_kwargs(fields.chat_template_kwargs or {}),
    )


def _kwargs(given: Mapping[str, object]) -> dict[str, object]:
    for name in given:
        if name in _RESERVED or not name.isidentifier():
            raise RequestError(f"chat_template_kwargs cannot set {name[:64]!r}", param="chat_template_kwargs")
    return dict(given)

# SPDX-License-Identifier: Apache-2.0
"""Chat messages to token ids by a model's own template. What the template writes may be control tokens;
what callers wrote (contents, roles, tool results, tool definitions) is plain text whatever it looks like."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.core.errors import ConfigError, ModelFileError, RequestError
from headrace.text.checkpoint_view import HasMetadata
from headrace.text.control_guard import ControlGuard, ControlTexts, all_texts, map_strings
from headrace.text.messages import PARAM, normalise_messages, plain_value
from headrace.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from jinja2 import TemplateError

KEY = "tokenizer.chat_template"
TOOL_KEY = "tokenizer.chat_template.tool_use"


@dataclass(frozen=True, slots=True)
class _Conversation:
    """What callers wrote, as JSON values: all that a template gets besides its options."""

    messages: list[object]
    tools: list[object] | None
    extra: dict[str, object]

    def mapped(self, change: Callable[[str], str], change_role: Callable[[str], str]) -> _Conversation:
        messages = [map_strings(message, change) for message in self.messages]
        for message, original in zip(messages, self.messages, strict=True):
            assert isinstance(message, dict)
            assert isinstance(original, dict)
            message["role"] = change(change_role(original["role"]))
        tools = None if self.tools is None else [map_strings(tool, change) for tool in self.tools]
        extra = {name: map_strings(value, change) for name, value in self.extra.items()}
        return _Conversation(messages, tools, extra)

    def texts(self) -> list[str]:
        return list(all_texts([self.messages, self.tools, self.extra]))


@dataclass(frozen=True, slots=True)
class _Options:
    adds_prompt: bool
    continues: bool


class ChatTemplate:
    """
    Args:
        source: jinja2 text. One that is broken raises ConfigError here.
        tokenizer: of the same model.
        tool_source: used instead when a request has tools, for models that have two templates.
    """

    def __init__(self, source: str, tokenizer: Tokenizer, *, tool_source: str | None = None) -> None:
        self.source = source
        self._tokenizer = tokenizer
        self._render_plain = _compile(source)
        self._render_tools = self._render_plain if tool_source is None else _compile(tool_source)
        self._control = ControlTexts(tokenizer.vocabulary.control)
        self._own_characters = frozenset(source + (tool_source or ""))
        named = {"bos_token": tokenizer.bos_id, "eos_token": _main_end(tokenizer)}
        self._special = {
            name: "" if token is None else tokenizer.token_text(token) for name, token in named.items()
        }

    def encode(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **template_kwargs: object,
    ) -> list[int]:
        """Token ids of a conversation, with exactly one BOS where the model wants one.

        Args:
            messages: role and content each; content may be a list of text parts.
            tools: definitions in OpenAI's form.
            add_generation_prompt: end with the opening of the assistant's turn.
            continue_final_message: the last message is left open for the model to go on with; goes
                before `add_generation_prompt`.
            template_kwargs: further variables of this template, e.g. `enable_thinking`.

        Raises RequestError when the template refuses the messages or fails on them.
        """
        conversation = _Conversation(
            list(normalise_messages(messages)),
            None if not tools else [plain_value(f"tools[{i}]", tool) for i, tool in enumerate(tools)],
            {name: plain_value(f"chat_template_kwargs.{name}", v) for name, v in template_kwargs.items()},
        )
        texts = conversation.texts()
        guard = ControlGuard(self._control, self._own_characters.union(*texts))
        options = _Options(add_generation_prompt and not continue_final_message, continue_final_message)
        pieces = self._pieces(conversation.mapped(guard.break_up, guard.break_role), options, guard)
        if any(map(guard.may_forge, texts)):
            neutral = self._pieces(conversation.mapped(guard.neutralise, guard.break_role), options, guard)
            if _tokens(neutral) != _tokens(pieces):  # the template put a control token together itself
                pieces = neutral
        ids = self._tokenizer.encode_pieces(pieces)
        return self._tokenizer.with_bos(ids) if self._tokenizer.adds_bos else ids

    def _pieces(self, conversation: _Conversation, options: _Options, guard: ControlGuard) -> list[str | int]:
        """The rendered text: control tokens as ids, the rest as the caller and the template wrote it."""
        text = self._render(conversation, options, guard.mark)
        split = self._tokenizer.split_markers(text)
        return [piece if isinstance(piece, int) else guard.restore(piece) for piece in split]

    def _render(self, conversation: _Conversation, options: _Options, mark: str) -> str:
        messages = conversation.messages
        end = mark * 2  # nothing else gives two marks in a row
        if options.continues:
            last = messages[-1]
            assert isinstance(last, dict)
            messages = [*messages[:-1], {**last, "content": last["content"] + end}]
        render = self._render_plain if conversation.tools is None else self._render_tools
        text = render(
            {
                **self._special,
                **conversation.extra,
                "messages": messages,
                "tools": conversation.tools,
                "documents": conversation.extra.get("documents"),
                "add_generation_prompt": options.adds_prompt,
            }
        )
        if not options.continues:
            return text
        if end not in text:
            raise RequestError(
                "continue_final_message: the model's chat template leaves out the last message",
                param="continue_final_message",
            )
        return text[: text.rindex(end)]


def load_chat_template(checkpoint: HasMetadata, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The template that comes with a model, or None. A broken one raises ModelFileError."""
    field, source, tool_source = _find_source(checkpoint)
    if source is None:
        return None
    try:
        return ChatTemplate(source, tokenizer, tool_source=tool_source)
    except ConfigError as error:
        raise ModelFileError(checkpoint.path, field, str(error)) from error


def read_template(option: str) -> str:
    """The source of a template that the user gave: a file's path, or the template itself, which has a `{`
    in it. Compiled for a try, so that a broken one is known before a model is loaded. Raises ConfigError."""
    source = option
    if "{" not in option:
        try:
            source = Path(option).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(f"chat template file {option!r} cannot be read: {error}") from error
    _compile(source)
    return source


def _compile(source: str) -> Callable[[Mapping[str, object]], str]:
    """`compile_template` with this room's errors. jinja2 is imported here, when a template is there."""
    from jinja2 import TemplateError, TemplateSyntaxError

    from headrace.text.template_sandbox import compile_template

    try:
        render = compile_template(source)
    except TemplateSyntaxError as error:
        raise ConfigError(f"chat template is broken at line {error.lineno}: {error.message}") from error
    except (TemplateError, RecursionError) as error:
        raise ConfigError(f"chat template is broken: {error}") from error

    def render_or_refuse(variables: Mapping[str, object]) -> str:
        try:
            return render(variables)
        except TemplateError as error:
            raise RequestError(_refusal(error), param=PARAM) from error
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise RequestError(
                f"the model's chat template fails on these messages: {error}", param=PARAM
            ) from error

    return render_or_refuse


def _refusal(error: TemplateError) -> str:
    from jinja2.exceptions import SecurityError

    from headrace.text.template_sandbox import RaisedByTemplate

    if isinstance(error, RaisedByTemplate):
        return f"the model's chat template refuses these messages: {error}"
    if isinstance(error, SecurityError):
        return f"the model's chat template was stopped by the sandbox: {error}"
    return f"the model's chat template fails on these messages: {error}"


def _tokens(pieces: Sequence[str | int]) -> list[int]:
    return [piece for piece in pieces if isinstance(piece, int)]


def _main_end(tokenizer: Tokenizer) -> int | None:
    """The token that templates mean by `eos_token`."""
    main = tokenizer.vocabulary.main_end_id
    return min(tokenizer.eos_ids, default=None) if main is None else main


def _find_source(checkpoint: HasMetadata) -> tuple[str, str | None, str | None]:
    """Where the template is, its source, and that of the one for tools."""
    if checkpoint.path.is_dir():
        from headrace.text.hf_template import find_template

        return find_template(checkpoint.path)
    source, tool_source = (checkpoint.metadata.get(key) for key in (KEY, TOOL_KEY))
    for key, value in ((KEY, source), (TOOL_KEY, tool_source)):
        if value is not None and not isinstance(value, str):
            raise ModelFileError(checkpoint.path, key, f"must be a string, is {type(value).__name__}")
    assert source is None or isinstance(source, str)
    assert tool_source is None or isinstance(tool_source, str)
    return KEY, source, tool_source

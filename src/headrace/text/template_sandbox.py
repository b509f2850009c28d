# SPDX-License-Identifier: Apache-2.0
"""Compiles and runs a chat template, which is code from a model file, in jinja2's sandbox: it reaches
nothing but the values it is given. What it writes is bounded in size, and so are the usual ways to build
large values (not all: a file that means to cost memory can)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_RENDERED_CHARS = 1 << 24  # far above any context; a template that loops for ever ends here
MAX_BUILT = 1 << 24  # characters or items that one `*` or padding method may build

_PADDING_METHODS = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs"})
_PADDING_FILTERS = ("center", "indent", "wordwrap")
_WIDE_LAYOUT = re.compile(r"\d{5}|\*|\{[^}]*\{")


class RaisedByTemplate(TemplateError):
    """The template called `raise_exception`: these messages are not for it."""


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (abs(left) <= 1e9 and abs(right) <= 64):
            raise SecurityError("a power that is too large")
        if operator == "%":
            _check_layout(left)
        if operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            _bound(len(left) + len(right))
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, int) and hasattr(other, "__len__"):
                    _bound(one * len(other))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        name = getattr(__obj, "__name__", "")
        if name in _PADDING_METHODS:
            _bound(*args, *kwargs.values())
        if name in ("format", "format_map"):
            _check_layout(getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None))
        return super().call(__context, __obj, *args, **kwargs)


def _check_layout(layout: Any) -> None:
    """Refuse formats that may pad to any width."""
    if isinstance(layout, str) and _WIDE_LAYOUT.search(layout):
        raise SecurityError("a format with a width that is too large or computed")


def _bound(*sizes: Any) -> None:
    if any(isinstance(size, int) and size > MAX_BUILT for size in sizes):
        raise SecurityError(f"something of more than {MAX_BUILT} characters or items")


class _GenerationBlock(Extension):
    """`{% generation %}` marks the parts that training learns from; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def compile_template(source: str) -> Callable[[Mapping[str, object]], str]:
    """A function from the template's variables to its text.

    Raises jinja2.TemplateError: here for a source that is no template; from the function for what
    goes wrong with these variables (RaisedByTemplate, SecurityError, UndefinedError, ...)."""
    sandbox = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols])
    sandbox.filters["tojson"] = to_json
    sandbox.filters.pop("pprint")
    for name in _PADDING_FILTERS:
        sandbox.filters[name] = _bounded(sandbox.filters[name])
    sandbox.filters["format"] = _format
    sandbox.globals.pop("lipsum")
    sandbox.globals["raise_exception"] = _raise_exception
    sandbox.globals["strftime_now"] = _strftime_now
    template = sandbox.from_string(source)

    def render(variables: Mapping[str, object]) -> str:
        parts: list[str] = []
        num_chars = 0
        for part in template.generate(variables):
            num_chars += len(part)
            if num_chars > MAX_RENDERED_CHARS:
                raise SecurityError(f"more than {MAX_RENDERED_CHARS} characters of output")
            parts.append(part)
        return "".join(parts)

    return render


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it: no escapes for HTML, none for letters beyond ASCII."""
    _bound(indent)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _bounded(filter_function: Callable[..., Any]) -> Callable[..., Any]:
    def bounded(*args: Any, **kwargs: Any) -> Any:
        _bound(*args, *kwargs.values())
        return filter_function(*args, **kwargs)

    for mark in ("jinja_pass_arg",):  # whether it wants the environment first
        if hasattr(filter_function, mark):
            setattr(bounded, mark, getattr(filter_function, mark))
    return bounded


def _format(layout: str, *args: object) -> str:
    _check_layout(layout)
    return str(layout) % args


def _raise_exception(message: object) -> None:
    raise RaisedByTemplate(str(message))


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)

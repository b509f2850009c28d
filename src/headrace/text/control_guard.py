# SPDX-License-Identifier: Apache-2.0
"""Keeps callers' text from forging control tokens in a rendered chat template. Rendering mixes two kinds
of text that tokens must tell apart: the template's own, in which `<|im_end|>` is a token, and the
caller's, in which it is ten characters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Set

from headrace.text.markers import MarkerSplitter

# Private-use characters (Unicode categories Co): no text means anything by them.
_PRIVATE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))

KNOWN_ROLES = frozenset(
    {"system", "user", "assistant", "tool", "developer", "function", "model", "ipython", "context"}
)


class ControlTexts:
    """The texts of a vocabulary's control tokens, prepared once for looking them up in callers' text."""

    def __init__(self, control: Mapping[str, int]) -> None:
        self.edges = "".join(sorted({edge for text in control for edge in (text[:1], text[-1:])}))
        self.edge = re.compile(f"[{re.escape(self.edges)}]") if self.edges else None
        self.markers = MarkerSplitter(control)
        self.insides = "\n".join(text[1:-1] for text in control)
        self.characters = frozenset("".join(control))


class ControlGuard:
    """Two ways to write the caller's strings so that they hold no control token.

    `break_up` puts a mark into every control token text. Templates that look into strings (`in`,
    `split`, `trim`) still find what they look for; but what they cut out or put together may form a
    token anew. `neutralise` replaces every character that a control token can begin or end with: nothing
    can be forged, but a template no longer finds `</think>` in it. `restore` takes both back out of a
    piece of rendered text.

    Args:
        control: the control tokens.
        taken: characters in use anywhere in the caller's strings and the template.
    """

    def __init__(self, control: ControlTexts, taken: Set[str]) -> None:
        self._control = control
        free = _free_characters(taken | control.characters)
        self.mark = next(free)
        stand_ins = dict(zip(control.edges, free, strict=False))
        self._neutral = str.maketrans(stand_ins)
        self._restoring = str.maketrans({self.mark: "", **{new: old for old, new in stand_ins.items()}})

    def may_forge(self, text: str) -> bool:
        """Whether a control token could begin or end in this text."""
        edge = self._control.edge
        return edge is not None and edge.search(text) is not None

    def break_up(self, text: str) -> str:
        if not self.may_forge(text):
            return text
        starts = [start + 1 for start, _, _ in self._control.markers.find(text)]
        cuts = zip([0, *starts], [*starts, len(text)], strict=True)
        return self.mark.join(text[start:end] for start, end in cuts)

    def break_role(self, role: str) -> str:
        """Templates build tokens from roles, as in `<|` + role + `|>`; only known ones may do so."""
        if role in KNOWN_ROLES or role not in self._control.insides:
            return role
        return role[:1] + self.mark + role[1:]

    def neutralise(self, text: str) -> str:
        return text.translate(self._neutral)

    def restore(self, text: str) -> str:
        return text.translate(self._restoring)


def map_strings(value: object, change: Callable[[str], str]) -> object:
    """The same JSON value with every string changed, keys too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return type(value)({change(key): map_strings(item, change) for key, item in value.items()})
    if isinstance(value, list):
        return [map_strings(item, change) for item in value]
    return value


def all_texts(value: object) -> Iterator[str]:
    """Every string in a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from all_texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from all_texts(item)


def _free_characters(taken: Set[str]) -> Iterator[str]:
    return (chr(code) for codes in _PRIVATE for code in codes if chr(code) not in taken)

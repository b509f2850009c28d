# SPDX-License-Identifier: Apache-2.0
"""Several engines measured on one model by turns, in one run. What cannot be run is said, and the rest goes
on. Knows an engine as a function that gives its speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.core.errors import ConfigError, HeadraceError


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersPlan:
    prompt_tokens: int = 512
    output_tokens: int = 128
    num_rows: int = 16  # sequences at once
    row_prompt_tokens: int = 32  # of each of these
    num_threads: int
    rounds: int = 5

    def __post_init__(self) -> None:
        for name, least in (
            ("prompt_tokens", 1),
            ("output_tokens", 2),
            ("num_rows", 1),
            ("num_threads", 1),
            ("rounds", 1),
        ):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens a second."""

    prompt: float
    decode: float  # one sequence, after a prompt of one token
    rows: float | None  # all sequences at once, together; None: this engine was not asked or cannot


class PeerFailed(HeadraceError):
    """A peer ended with an error or said nothing that can be read."""


@dataclass(frozen=True, slots=True)
class Side:
    name: str
    model: str
    measure: Callable[[], Speed]


@dataclass(slots=True)
class Turns:
    """What one side has shown so far."""

    side: Side
    speeds: list[Speed] = field(default_factory=list)
    failure: str | None = None  # it gets no more turns


def take_turns(
    sides: Sequence[Side], rounds: int, on_turn: Callable[[str], object] = lambda name: None
) -> list[Turns]:
    """Each side once a round, every second round backwards, so that none always follows the same one.

    Args:
        on_turn: called with the name of the side whose turn begins.
    """
    all_turns = [Turns(side) for side in sides]
    for number in range(rounds):
        for turns in all_turns if number % 2 == 0 else reversed(all_turns):
            on_turn(turns.side.name)
            if turns.failure is not None:
                continue
            try:
                turns.speeds.append(turns.side.measure())
            except PeerFailed as error:
                turns.failure = str(error)
    return all_turns

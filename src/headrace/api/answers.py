# SPDX-License-Identifier: Apache-2.0
"""Whole answers, put together from the deltas that would otherwise be streamed: one way to make text."""

from __future__ import annotations

from collections.abc import AsyncIterable
from dataclasses import dataclass, field

from headrace.api.generation import Gain, PromptScores
from headrace.api.token_trace import TracedToken
from headrace.api.transcript import Finish
from headrace.core.plan import TokenResult


@dataclass(slots=True)
class Answer:
    """One choice. Complete once `finish` is set."""

    parts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    traced: list[TracedToken] = field(default_factory=list)
    num_output: int = 0
    finish: Finish | None = None
    prompt_scores: tuple[TokenResult, ...] | None = None  # only of a prompt's first choice

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def add(self, gain: Gain) -> None:
        if isinstance(gain, PromptScores):
            self.prompt_scores = gain.tokens
            return
        self.parts.append(gain.text)
        self.token_ids += gain.token_ids
        self.traced += gain.traced
        self.num_output = gain.num_output
        self.finish = gain.finish


async def gather(gains: AsyncIterable[Gain], num_choices: int) -> list[Answer]:
    answers = [Answer() for _ in range(num_choices)]
    async for gain in gains:
        answers[gain.choice].add(gain)
    return answers

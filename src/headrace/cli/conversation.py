# SPDX-License-Identifier: Apache-2.0
"""One talk with a model: what was said so far, and answers as they come. Prints nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.api.llm import LLM
from headrace.core.errors import ConfigError
from headrace.core.request import SamplingParams


@dataclass(frozen=True, slots=True)
class Timing:
    """How one answer went."""

    num_prompt: int
    num_output: int
    first_s: float  # from the question to the first text
    total_s: float

    def __str__(self) -> str:
        parts = [
            f"{self.num_prompt} tokens in, {self.num_output} out",
            f"first text after {self.first_s:.3f} s",
        ]
        if self.num_output > 1 and self.total_s > self.first_s:
            parts.append(f"then {(self.num_output - 1) / (self.total_s - self.first_s):.1f} tokens/s")
        return ", ".join(parts)


class Completion:
    """Text continued as it is: every question stands alone."""

    def __init__(self, llm: LLM, params: SamplingParams) -> None:
        self._llm = llm
        self._params = params
        self.timing: Timing | None = None  # of the last answer

    def ask(self, text: str) -> Iterator[str]:
        """The answer's text in pieces. Closing the iterator stops the model."""
        return self._answer(self._llm.model.tokenizer.encode(text))

    def _answer(self, ids: list[int]) -> Iterator[str]:
        begin_s = time.perf_counter()
        first_s = 0.0
        num_output = 0
        deltas = self._llm.stream(ids, self._params)
        try:
            for delta in deltas:
                if not first_s:
                    first_s = time.perf_counter() - begin_s
                num_output = delta.num_output
                yield delta.text
        finally:
            deltas.close()  # type: ignore[attr-defined]  # it is a generator
            self.timing = Timing(len(ids), num_output, first_s, time.perf_counter() - begin_s)


class Conversation(Completion):
    """Questions and answers under the model's chat template, each seeing those before it."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None = None) -> None:
        super().__init__(llm, params)
        if llm.model.chat_template is None:
            raise ConfigError(
                f"{llm.model.name} has no chat template, so it cannot chat. "
                f"Add --raw to have it continue your text as it is, or give one with --chat-template"
            )
        self.system = system
        self._turns: list[dict[str, str]] = []

    @property
    def num_turns(self) -> int:
        return len(self._turns) // 2

    def reset(self) -> None:
        """Forget what was said; the system message stays."""
        self._turns.clear()

    def ask(self, text: str) -> Iterator[str]:
        """A question whose answer broke off keeps the part that came; one without any is forgotten."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        question = {"role": "user", "content": text}
        ids = self._llm.encode_chat([*system, *self._turns, question])
        answer = ""
        try:
            for piece in self._answer(ids):
                answer += piece
                yield piece
        finally:
            if answer:
                self._turns += [question, {"role": "assistant", "content": answer}]

# SPDX-License-Identifier: Apache-2.0
"""Where the time until a sequence's first token goes. Every moment belongs to causes by shares that sum to
one, so that the causes' seconds sum to the whole wait."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.core.events import WaitSplit

Mix = Mapping[str, float]  # cause (a field of WaitSplit) -> its share of the time, summing to 1

QUEUE: Mix = {"queue_s": 1.0}
KV_PRESSURE: Mix = {"kv_pressure_s": 1.0}
OTHER_PROMPTS: Mix = {"other_prompts_s": 1.0}


def step_mix(num_own: int, num_other_prompt: int, num_other_answer: int) -> Mix:
    """A step's time among those whose tokens it computes, by their number."""
    total = num_own + num_other_prompt + num_other_answer
    if total == 0:
        return QUEUE
    return {
        "own_prompt_s": num_own / total,
        "other_prompts_s": num_other_prompt / total,
        "other_answers_s": num_other_answer / total,
    }


class WaitClock:
    """Runs from the arrival. Times are `time.monotonic()`."""

    __slots__ = ("_mix", "_seconds", "_since_s")

    def __init__(self, arrival_s: float, submitted_s: float) -> None:
        """What came before the submission was spent on making tokens of the request."""
        self._seconds: dict[str, float] = {"tokenize_s": max(submitted_s - arrival_s, 0.0)}
        self._since_s = max(submitted_s, arrival_s)
        self._mix: Mix = QUEUE

    def enter(self, now_s: float, mix: Mix) -> None:
        """From now on the time goes to these causes."""
        elapsed_s = max(now_s - self._since_s, 0.0)
        for cause, share in self._mix.items():
            self._seconds[cause] = self._seconds.get(cause, 0.0) + share * elapsed_s
        self._since_s, self._mix = now_s, mix

    def split(self, now_s: float) -> WaitSplit:
        """The wait as it is now."""
        self.enter(now_s, self._mix)
        return WaitSplit(**self._seconds)

# SPDX-License-Identifier: Apache-2.0
"""When the stations of one answer were passed. `Generation` alone writes to it."""

from __future__ import annotations

import time

from headrace.api.transcript import Delta
from headrace.core.events import Finished, FirstToken
from headrace.core.request import GenerateRequest
from headrace.observe.answers import AnswerEnd, EndReason, FirstText


class AnswerClock:
    """
    Args:
        n: how many answers its prompt gets.
        opens_prompt: whether it is the first of them.
    """

    def __init__(self, request: GenerateRequest, n: int, *, opens_prompt: bool) -> None:
        self._request = request
        self._n = n
        self._opens_prompt = opens_prompt
        self._arrival_s = time.monotonic() if request.arrival_s is None else request.arrival_s
        self._first_token: FirstToken | None = None
        self._finished: Finished | None = None
        self._first_text: FirstText | None = None
        self.num_output = 0  # tokens counted so far
        self.end: AnswerEnd | None = None

    @property
    def num_cached(self) -> int:
        """Prompt tokens found in the cache, as far as it is known."""
        if self._first_token is not None:
            return self._first_token.num_cached
        return 0 if self._finished is None else self._finished.num_cached

    def note_token(self, event: FirstToken) -> None:
        self._first_token = event

    def note_finished(self, event: Finished) -> None:
        self._finished = event

    def note_delta(self, delta: Delta) -> FirstText | None:
        """What is known with the first delta, which is None for the others."""
        self.num_output = delta.num_output
        event = self._first_token
        if event is None or self._first_text is not None:
            return None
        started_s = event.at_s if event.started_s is None else event.started_s
        self._first_text = FirstText(
            wait=event.wait,
            delivery_s=max(time.monotonic() - event.at_s, 0.0),
            started_s=max(started_s - self._arrival_s, 0.0),
            num_prompt=len(self._request.prompt_ids),
            num_cached=event.num_cached,
            opens_prompt=self._opens_prompt,
        )
        return self._first_text

    def stop(self, reason: EndReason) -> AnswerEnd:
        """It is over."""
        self.end = AnswerEnd(
            reason=reason,
            first=self._first_text,
            e2e_s=time.monotonic() - self._arrival_s,
            num_prompt=len(self._request.prompt_ids),
            num_cached=self.num_cached,
            num_output=self.num_output,
            opens_prompt=self._opens_prompt,
            n=self._n,
            max_tokens=self._request.params.max_tokens,
            num_preemptions=None if self._finished is None else self._finished.num_preemptions,
        )
        return self.end

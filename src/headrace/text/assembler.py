# SPDX-License-Identifier: Apache-2.0
"""The text of one answer from its token ids: detokenised, cut at stop strings. However the ids are cut
into pushes, the deltas joined are the same text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.text.detokenizer import Detokenizer
from headrace.text.stop_strings import StopScanner
from headrace.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str
    stopped: str | None  # the stop string that ended the answer
    num_tokens_used: int  # of the ids pushed, up to the one that settled the match; all without one


class TextAssembler:
    """One answer. After a stop match it takes no more: pushes give nothing and use no tokens.

    Args:
        stop: strings that end the answer.
        include_stop: whether the stop string is part of the text.
        skip_special: leave control tokens out.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        *,
        include_stop: bool = False,
        skip_special: bool = True,
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special=skip_special)
        self._scanner = StopScanner(stop, include_stop=include_stop) if stop else None
        self.stopped: str | None = None  # also set by `flush`

    def push(self, ids: Sequence[int]) -> TextDelta:
        if self.stopped is not None:
            return TextDelta("", self.stopped, 0)
        if self._scanner is None:
            return TextDelta(self._detokenizer.push(ids), None, len(ids))
        shown: list[str] = []
        for number, token in enumerate(ids, start=1):
            scan = self._scanner.feed(self._detokenizer.push((token,)))
            shown.append(scan.text)
            if scan.stopped is not None:
                self.stopped = scan.stopped
                return TextDelta("".join(shown), scan.stopped, number)
        return TextDelta("".join(shown), None, len(ids))

    def flush(self) -> str:
        """The answer is over: the text that was held back."""
        if self.stopped is not None:
            return ""
        rest = self._detokenizer.flush()
        if self._scanner is None:
            return rest
        scan = self._scanner.feed(rest)
        if scan.stopped is None:
            last = self._scanner.flush()
            self.stopped = last.stopped
            return scan.text + last.text
        self.stopped = scan.stopped
        return scan.text

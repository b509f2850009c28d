# SPDX-License-Identifier: Apache-2.0
"""A backend that recites: whatever the prompt, output token i is script[i]. For tests that need an exact
text; the draw plan's bias is honoured at +100 only, as a way to show that it arrived."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from headrace.core.plan import BackendInfo, OutputPlan, RowPlan, RowResult, StepPlan, StepResult, TokenResult


class RecitingBackend:
    """
    Args:
        script: output token ids, then `end` for ever.
        step_s: how long each step takes.
        fail_at: the output place at which a step raises.
    """

    def __init__(
        self,
        script: Sequence[int],
        *,
        end: int,
        vocab_size: int,
        max_model_len: int = 1024,
        num_blocks: int = 256,
        step_s: float = 0.0,
        fail_at: int | None = None,
        logprob: float = -0.5,
    ) -> None:
        self.info = BackendInfo(vocab_size, max_model_len, 16, num_blocks)
        self.script = list(script)
        self.step_s = step_s
        self.fail_at = fail_at
        self.num_steps = 0
        self._end = end
        self._logprob = logprob

    def execute(self, plan: StepPlan) -> StepResult:
        self.num_steps += 1
        time.sleep(self.step_s)
        rows = tuple(RowResult(row.sequence_id, self._answers(row)) for row in plan.rows)
        return StepResult(rows=rows, native_s=0.0)

    def close(self) -> None:
        pass

    def _answers(self, row: RowPlan) -> tuple[TokenResult, ...]:
        return tuple(self._answer(output) for output in row.outputs)

    def _answer(self, output: OutputPlan) -> TokenResult:
        if output.draw is None:
            assert output.target is not None
            return self._result(output.target, output.num_top)
        place = output.draw.position - output.draw.num_prompt
        if place == self.fail_at:
            raise RuntimeError("told to fail")
        forced = [token for token, bias in output.draw.logit_bias if bias == 100]
        banned = {token for token, bias in output.draw.logit_bias if bias == -math.inf}
        token = forced[0] if forced else self.script[place] if place < len(self.script) else self._end
        return self._result(0 if token in banned else token, output.num_top)

    def _result(self, token: int, num_top: int) -> TokenResult:
        if num_top < 0:
            return TokenResult(token, 0.0, ())
        others = [other for other in range(num_top + 1) if other != token]
        top = [(token, self._logprob), *((other, self._logprob - 1 - other) for other in others)]
        return TokenResult(token, self._logprob, tuple(top[:num_top]))

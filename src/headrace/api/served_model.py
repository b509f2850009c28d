# SPDX-License-Identifier: Apache-2.0
"""The model that a server answers with: what routes may read of it, frozen when it is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.core.errors import RequestError
from headrace.engine.loop import Engine
from headrace.observe.counts import AnswerCounts, StepCounts
from headrace.text.chat_template import ChatTemplate
from headrace.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    names: tuple[str, ...]  # the first is the one that answers carry; requests may use any
    created_s: int  # Unix time
    engine: Engine
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    max_model_len: int  # tokens, prompt and output together
    vocab_size: int  # ids 0 .. vocab_size-1 may be sent
    step_counts: StepCounts  # the engine's, which writes them
    answer_counts: AnswerCounts = field(default_factory=AnswerCounts)
    enable_prefix_caching: bool = True  # as the engine has it

    def check_name(self, name: str | None) -> None:
        """A request may leave the model out: there is only one."""
        if name is not None and name not in self.names:
            raise RequestError(
                f"The model {name!r} does not exist here. This server has {self.names[0]!r}.",
                param="model",
                code="model_not_found",
                status=404,
            )

# SPDX-License-Identifier: Apache-2.0
"""Draws without conditions, for tests to change one thing at a time."""

from __future__ import annotations

from dataclasses import replace

from headrace.core.plan import DrawPlan

PLAIN = DrawPlan(
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    repetition_penalty=1.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    seed=1,
    position=0,
    logit_bias=(),
    history=(),
    num_prompt=0,
)
GREEDY = replace(PLAIN, temperature=0.0, seed=0)

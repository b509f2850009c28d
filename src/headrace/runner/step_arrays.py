# SPDX-License-Identifier: Apache-2.0
"""A StepPlan as the flat arrays that native code reads. T tokens, R rows, O outputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.core.plan import DrawPlan, OutputPlan, StepPlan

# Field for field the native OutputSpec.
OUTPUT_SPEC = np.dtype(
    [
        ("token", np.int32),
        ("target", np.int32),
        ("num_top", np.int32),
        ("top_k", np.int32),
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("repetition_penalty", np.float32),
        ("presence_penalty", np.float32),
        ("frequency_penalty", np.float32),
        ("seed", np.uint64),
        ("position", np.uint64),
        ("bias_begin", np.int64),
        ("bias_end", np.int64),
        ("history_begin", np.int64),
        ("history_end", np.int64),
        ("num_prompt", np.int32),
        ("num_drawable", np.int32),
    ]
)


@dataclass(frozen=True, slots=True)
class StepArrays:
    tokens: npt.NDArray[np.int32]  # (T,)
    row_begin: npt.NDArray[np.int64]  # (R + 1,)
    num_computed: npt.NDArray[np.int64]  # (R,)
    block_begin: npt.NDArray[np.int64]  # (R + 1,)
    blocks: npt.NDArray[np.int32]
    outputs: npt.NDArray[np.uint8]  # (O * bytes of an OutputSpec,)
    bias_ids: npt.NDArray[np.int32]
    bias: npt.NDArray[np.float32]
    history: npt.NDArray[np.int32]
    num_outputs: int


def flatten(plan: StepPlan) -> StepArrays:
    tokens: list[int] = []
    row_begin, block_begin = [0], [0]
    blocks: list[int] = []
    specs: list[tuple[float, ...]] = []
    bias: list[tuple[int, float]] = []
    history: list[int] = []
    for row in plan.rows:
        specs.extend(_spec(output, len(tokens), bias, history) for output in row.outputs)
        tokens.extend(row.tokens)
        blocks.extend(row.block_ids)
        row_begin.append(len(tokens))
        block_begin.append(len(blocks))
    return StepArrays(
        tokens=np.array(tokens, dtype=np.int32),
        row_begin=np.array(row_begin, dtype=np.int64),
        num_computed=np.array([row.num_computed for row in plan.rows], dtype=np.int64),
        block_begin=np.array(block_begin, dtype=np.int64),
        blocks=np.array(blocks, dtype=np.int32),
        outputs=np.array(specs, dtype=OUTPUT_SPEC).view(np.uint8).reshape(-1),
        bias_ids=np.array([token for token, _ in bias], dtype=np.int32),
        bias=np.array([value for _, value in bias], dtype=np.float32),
        history=np.array(history, dtype=np.int32),
        num_outputs=len(specs),
    )


# Stands where a target is scored and nothing is drawn.
_NO_DRAW = DrawPlan(
    temperature=0.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    repetition_penalty=1.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    seed=0,
    position=0,
    logit_bias=(),
    history=(),
    num_prompt=0,
)


def _spec(
    output: OutputPlan, row_begin: int, bias: list[tuple[int, float]], history: list[int]
) -> tuple[float, ...]:
    """One OutputSpec; its bias and history are appended to the step's."""
    draw = output.draw or _NO_DRAW
    bias_begin, history_begin = len(bias), len(history)
    bias.extend(draw.logit_bias)
    history.extend(draw.history)
    return (
        row_begin + output.index,
        -1 if output.target is None else output.target,
        output.num_top,
        draw.top_k,
        draw.temperature,
        draw.top_p,
        draw.min_p,
        draw.repetition_penalty,
        draw.presence_penalty,
        draw.frequency_penalty,
        draw.seed,
        draw.position,
        bias_begin,
        len(bias),
        history_begin,
        len(history),
        draw.num_prompt,
        output.num_drawable,
    )

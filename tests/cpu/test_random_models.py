# SPDX-License-Identifier: Apache-2.0
"""The native backend on models of random weights: odd shapes and every format against the reference backend,
long contexts against themselves cut otherwise, and weights that are damaged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from paged_rows import Chunks, ScoredPlace, score, worst_error
from random_models import RandomModel, float_bytes, random_model

from budgets import LOGPROB_CPU, LOGPROB_CPU_INT8
from draws import GREEDY
from headrace import _native
from headrace.core.plan import Backend, OutputPlan, RowPlan, StepPlan
from headrace.core.request import MAX_TOP_LOGPROBS
from headrace.runner.backends.cpu import CpuBackend, load_cpu_backend
from headrace.runner.backends.reference import ReferenceBackend, load_reference_backend
from headrace.runner.step_arrays import OUTPUT_SPEC
from headrace.weights.formats import BY_NAME, FORMATS

WIDE = {"embedding_length": 256, "feed_forward_length": 512}  # whole qblocks of every format
NARROW = {
    "embedding_length": 40,
    "feed_forward_length": 71,
    "attention.head_count": 2,
    "attention.head_count_kv": 1,
    "vocab_size": 77,
}
SOFTCAP = {"attn_logit_softcapping": 4.0}

FLOAT_MODELS: dict[str, dict[str, object]] = {
    # Heads of no whole vector fall to the reference attention.
    "heads of 20": {"arch": "llama", "attention.key_length": 20},
    "heads of 80": {"arch": "qwen3", "attention.key_length": 80},
    "heads of 100": {"arch": "gemma3", "attention.key_length": 100, "attention.sliding_window": 8},
    "heads of 100, capped": {
        "arch": "gemma3",
        "attention.key_length": 100,
        "attention.sliding_window": 8,
        **SOFTCAP,
    },
    "heads of 32, capped": {
        "arch": "gemma3",
        "attention.key_length": 32,
        "attention.sliding_window": 8,
        **SOFTCAP,
    },
    "rows of 40, F32": {"arch": "llama", **NARROW},
    "rows of 40, F16": {"arch": "llama", "matrices": "F16", **NARROW},
    "rows of 40, BF16": {"arch": "qwen2", "matrices": "BF16", **NARROW},
    "a head of its own": {"arch": "llama", "head": "F16"},
}
QUANTISED_MODELS: dict[str, dict[str, object]] = {
    row.name: {"arch": "qwen2", "matrices": row.name, **WIDE} for row in FORMATS if not row.is_float
} | {
    "a head of its own": {"arch": "llama", "matrices": "Q4_K", "head": "Q6_K", **WIDE},
    "formats mixed in one product": {
        "arch": "llama",
        "matrices": "Q8_0",
        "formats": {"attn_v": "F16", "ffn_down": "F32", "ffn_up": "BF16"},
        "feed_forward_length": 100,
    },
}
LENGTHS = (37, 21, 45)
WHOLE: Chunks = [{0: 37}, {1: 21}, {2: 45}]
MIXED: Chunks = [{0: 9, 2: 44}, {2: 1, 0: 1, 1: 17}, {1: 1, 0: 20}, {0: 1, 1: 1}, {1: 2, 0: 6}]


def cpu(
    model: RandomModel, num_threads: int = 2, kernels: str = "auto", max_model_len: int = 2048
) -> CpuBackend:
    return load_cpu_backend(
        model,
        num_threads=num_threads,
        max_model_len=max_model_len,
        kv_cache_bytes=8 << 20,
        kernels=kernels,
    )


def reference(model: RandomModel, max_model_len: int = 2048) -> ReferenceBackend:
    return load_reference_backend(model, max_model_len=max_model_len, num_blocks=64)


@pytest.mark.parametrize("name", [*FLOAT_MODELS, *(f"int8: {name}" for name in QUANTISED_MODELS)])
def test_native_against_reference(name: str) -> None:
    quantised = name.removeprefix("int8: ") if name not in FLOAT_MODELS else None
    model = random_model(**(FLOAT_MODELS[name] if quantised is None else QUANTISED_MODELS[quantised]))  # type: ignore[arg-type]
    exact, native = reference(model), cpu(model)
    rng = np.random.default_rng(7)
    sequences = [rng.integers(0, native.info.vocab_size, length).tolist() for length in LENGTHS]
    oracle = []
    for ids in sequences:
        outputs = tuple(OutputPlan(i, None, 0, -1) for i in range(len(ids)))
        oracle.append(exact.logits(StepPlan((RowPlan(1, tuple(ids), 0, (0, 1, 2), outputs),))))
    for steps in (WHOLE, MIXED):
        scored = score(native, sequences, steps)
        if quantised is None:
            assert worst_error(scored, oracle) < LOGPROB_CPU
        else:
            assert usual_error(scored, oracle) < LOGPROB_CPU_INT8


def usual_error(scored: list[ScoredPlace], oracle: list[np.ndarray]) -> float:
    """As `worst_error`, but the root of the mean square."""
    squares = []
    for entry in scored:
        logits = oracle[entry.sequence][entry.place].astype(np.float64)
        expected = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        tokens, values = zip(*entry.result.top, strict=True)
        squares.append((np.array(values) - expected[list(tokens)]) ** 2 / logits.var())
    return float(np.mean(squares) ** 0.5)


def test_far_positions() -> None:
    """Token 80,000 and on. A block that was computed once stands for all places before."""
    model = random_model("llama", context_length=100_000)
    ids = tuple(range(100, 116))
    scored = tuple(OutputPlan(i, None, 5, 5) for i in range(16))
    answers = []
    for backend in (reference(model, 100_000), cpu(model, max_model_len=100_000)):
        backend.execute(StepPlan((RowPlan(1, ids, 0, (0,), ()),)))
        far = RowPlan(1, ids, 80_000, (0,) * 5000 + (1,), scored)
        answers.append([answer.logprob for answer in backend.execute(StepPlan((far,))).rows[0].outputs])
    np.testing.assert_allclose(answers[1], answers[0], atol=LOGPROB_CPU)


def test_more_outputs_than_tokens() -> None:
    """Logits come 32 at a time. Here they are as wide as what they are computed from."""
    backend = cpu(random_model("llama", vocab_size=64))
    ids = tuple(range(33))
    once = tuple(OutputPlan(i, None, 5, 3) for i in range(33))
    want = backend.execute(StepPlan((RowPlan(1, ids, 0, (0, 1, 2), once),))).rows[0].outputs
    got = backend.execute(StepPlan((RowPlan(1, ids, 0, (0, 1, 2), once[:1] * 8 + once),))).rows[0].outputs
    assert got == want[:1] * 8 + want


# ---- to the bit ----

LONG_MODELS: dict[str, dict[str, object]] = {
    "llama": {"arch": "llama", "matrices": "Q8_0"},
    "four queries a key": {
        "arch": "llama",
        "matrices": "Q4_1",
        "attention.head_count_kv": 1,
        "attention.key_length": 64,
        "embedding_length": 128,
        "feed_forward_length": 256,
    },
    "gemma": {
        "arch": "gemma3",
        "matrices": "Q4_1",
        "attention.sliding_window": 512,
        "attention.sliding_window_pattern": 2,
        "attention.key_length": 32,
    },
    "heads of 20": {"arch": "qwen3", "attention.key_length": 20},
}


def listed(backend: Backend, lengths: list[int], steps: Chunks) -> dict[tuple[int, int], object]:
    """The most likely tokens at each place of random sequences, with their log probabilities."""
    rng = np.random.default_rng(sum(lengths))
    sequences = [rng.integers(0, backend.info.vocab_size, length).tolist() for length in lengths]
    return {(entry.sequence, entry.place): entry.result.top for entry in score(backend, sequences, steps)}


@pytest.mark.parametrize("length", [255, 256, 257, 300, 513, 600, 769, 1100])
@pytest.mark.parametrize("name", LONG_MODELS)
def test_keys_split_among_threads_or_not(name: str, length: int) -> None:
    """Few new tokens over many keys are split among threads, whole prompts are not."""
    model = random_model(**LONG_MODELS[name])  # type: ignore[arg-type]
    whole = listed(cpu(model, num_threads=1), [length], [{0: length}])
    split = cpu(model, num_threads=3)
    for new in (1, 4, 5, 8, 9):
        before = min(length - new, length - 9, 250)
        steps: Chunks = [{0: before}] + [{0: new}] * ((length - before) // new // 8)
        steps += [{0: length - sum(step[0] for step in steps) - new}, {0: new}]
        assert listed(split, [length], [step for step in steps if step[0]]) == whole, steps


@pytest.mark.parametrize("new", [1, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("name", LONG_MODELS)
def test_company_of_every_size(name: str, new: int) -> None:
    """Eight rows with 1 to 9 new tokens: threads prepare inputs each for itself or together, heads within
    the attention's tasks or before them."""
    backend = cpu(random_model(**LONG_MODELS[name]))  # type: ignore[arg-type]
    lengths = [new + 30 * i for i in range(8)]
    alone = listed(backend, lengths, [{i: length} for i, length in enumerate(lengths)])
    first: Chunks = [{i: length - new for i, length in enumerate(lengths) if length > new}]
    assert listed(backend, lengths, [*first, dict.fromkeys(range(8), new)]) == alone


@pytest.mark.parametrize("kernels", _native.kernel_tables())
@pytest.mark.parametrize("name", LONG_MODELS)
def test_beginnings_read_together_or_each_by_itself(name: str, kernels: str) -> None:
    """Seven rows on the blocks of two others: the shared part a whole number of splits or not, within a
    window or before it, one new token or several."""
    backend = cpu(random_model(**LONG_MODELS[name]), kernels=kernels)  # type: ignore[arg-type]
    rng = np.random.default_rng(5)
    beginnings = {first: rng.integers(0, 64, count * 16).tolist() for first, count in ((0, 40), (40, 33))}
    for first, ids in beginnings.items():
        blocks = tuple(range(first, first + len(ids) // 16))
        backend.execute(StepPlan((RowPlan(0, tuple(ids), 0, blocks, ()),)))
    shapes = [(0, 40, 1), (0, 40, 5), (0, 32, 1), (0, 16, 2), (40, 33, 1), (40, 32, 9), (40, 15, 1)]
    rows = []
    for number, (first, shared, num_new) in enumerate(shapes):
        outputs = tuple(OutputPlan(i, None, 5, 5) for i in range(num_new))
        blocks = (*range(first, first + shared), 80 + number)
        rows.append(RowPlan(number, (number + 1,) * num_new, shared * 16, blocks, outputs))
    together = backend.execute(StepPlan(tuple(rows))).rows
    for row, result in zip(rows, together, strict=True):
        assert backend.execute(StepPlan((row,))).rows[0] == result


# ---- what goes wrong ----


def damaged(matrices: str, value: float) -> RandomModel:
    """The embedding of token 7 holds `value`."""
    model = random_model("llama", matrices=matrices, formats={"token_embd": "F32"}, head="F32")
    embedding = model.tensors["token_embd.weight"]
    values = embedding.data.view(np.float32).copy()
    values[7 * embedding.shape[1] + 3] = value
    model.tensors["token_embd.weight"] = replace(embedding, data=float_bytes(BY_NAME["F32"], values))
    return model


def drawn(sequence_id: int, ids: tuple[int, ...]) -> RowPlan:
    return RowPlan(sequence_id, ids, 0, (sequence_id,), (OutputPlan(len(ids) - 1, GREEDY, None, 3),))


def scored(sequence_id: int, ids: tuple[int, ...]) -> RowPlan:
    return RowPlan(sequence_id, ids, 0, (sequence_id,), (OutputPlan(len(ids) - 1, None, 9, 0),))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("matrices", ["F32", "Q8_0"])
def test_a_damaged_row_fails_alone(matrices: str, value: float) -> None:
    backend = cpu(damaged(matrices, value))
    good = [drawn(0, (1, 2, 3)), scored(3, (4, 5))]
    alone = [backend.execute(StepPlan((row,))).rows[0] for row in good]
    rows = (good[0], drawn(1, (1, 7, 3)), scored(2, (7,)), good[1])
    together = backend.execute(StepPlan(rows)).rows
    assert [together[0], together[3]] == alone
    for row in together[1:3]:
        assert row.outputs == ()
        assert row.error is not None
        assert "weights may be damaged" in row.error
    in_its_block = replace(good[0], block_ids=(1,))
    assert backend.execute(StepPlan((in_its_block,))).rows[0] == alone[0], "K/V of a row that failed is read"


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_damaged_row_fails_alone_in_the_reference() -> None:
    backend = reference(damaged("F32", np.nan))
    result = backend.execute(StepPlan((drawn(0, (1, 2, 3)), drawn(1, (1, 7, 3)), scored(2, (7,)))))
    assert [row.error is None for row in result.rows] == [True, False, False]


def test_most_listed_and_longest_history() -> None:
    backend = cpu(random_model("llama", vocab_size=9000), max_model_len=4096)
    history = tuple(range(8000))
    draw = replace(GREEDY, repetition_penalty=1e9, history=history, num_prompt=4000)
    outputs = (OutputPlan(0, draw, None, MAX_TOP_LOGPROBS),)
    answer = backend.execute(StepPlan((RowPlan(1, (5,), 0, (0,), outputs),))).rows[0].outputs[0]
    assert answer.token >= 8000
    assert len(answer.top) == MAX_TOP_LOGPROBS
    too_many = replace(outputs[0], num_top=MAX_TOP_LOGPROBS + 1)
    with pytest.raises(ValueError, match="num_top is 21"):
        backend.execute(StepPlan((RowPlan(1, (5,), 0, (0,), (too_many,)),)))


def test_limits_are_the_native_ones() -> None:
    assert _native.MAX_TOP == MAX_TOP_LOGPROBS
    assert OUTPUT_SPEC.itemsize == _native.OUTPUT_SPEC_BYTES


def test_a_closed_backend_says_so() -> None:
    backend = cpu(random_model("llama"))
    backend.close()
    with pytest.raises(RuntimeError, match="closed"):
        backend.execute(StepPlan(()))

# SPDX-License-Identifier: Apache-2.0
"""Random workloads: whatever the company, the chunks, the number of blocks and the aborts, every sequence
gets the answer that it would get alone, and exactly one last word."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.config import EngineConfig
from headrace.core.request import GenerateRequest, SamplingParams
from headrace.runner.backends.fake import FakeBackend
from unit.engine.driver import EOS, Driver, plain_answer

VOCAB = 24  # small, so that end tokens do get drawn
MAX_LEN = 40

params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-6, 0.8]),
    seed=st.sampled_from([0, -3, 2**64 - 1, 12345]),
    max_tokens=st.one_of(st.none(), st.integers(0, 14)),
    ignore_eos=st.booleans(),
    stop_token_ids=st.sampled_from([(), (7,), (7, 9)]),
    logprobs=st.sampled_from([None, 0, 2]),
    prompt_logprobs=st.sampled_from([None, None, 0, 3]),
    logit_bias=st.sampled_from([(), ((4, 1.5),)]),
)


@st.composite
def requests(draw: st.DrawFn) -> list[GenerateRequest]:
    prompts = draw(
        st.lists(
            st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=22).map(tuple), min_size=1, max_size=7
        )
    )
    return [
        GenerateRequest(
            request_id=f"r{i}", prompt_ids=prompt, params=draw(params), n=draw(st.sampled_from([1, 1, 1, 3]))
        )
        for i, prompt in enumerate(prompts)
    ]


@st.composite
def backends(draw: st.DrawFn) -> FakeBackend:
    """From room for everybody down to room for just one full sequence."""
    block_size = draw(st.sampled_from([1, 3, 4]))
    num_blocks = -(-MAX_LEN // block_size) + draw(st.integers(0, 12))
    return FakeBackend(vocab_size=VOCAB, max_model_len=MAX_LEN, block_size=block_size, num_blocks=num_blocks)


@st.composite
def configs(draw: st.DrawFn) -> EngineConfig:
    max_num_seqs = draw(st.integers(1, 6))
    return EngineConfig(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_seqs + draw(st.integers(0, 20))
    )


@settings(max_examples=80, deadline=None)
@given(requests(), backends(), configs(), st.data())
def test_everybody_gets_their_own_answer(
    workload: list[GenerateRequest], backend: FakeBackend, config: EngineConfig, data: st.DataObject
) -> None:
    driver = Driver(backend, config)
    arrivals = sorted(data.draw(st.lists(st.integers(0, 12), min_size=len(workload), max_size=len(workload))))
    waiting = list(zip(arrivals, workload, strict=True))
    for step in range(13):
        while waiting and waiting[0][0] == step:
            driver.add(waiting.pop(0)[1])
        if driver.scheduler.has_work:
            driver.step()
    driver.run()
    alone = FakeBackend(
        vocab_size=VOCAB, max_model_len=MAX_LEN, block_size=backend.info.block_size, num_blocks=MAX_LEN
    )
    for request in workload:
        for index in range(request.n):
            assert driver.answers[request.request_id, index] == plain_answer(request, index, alone, EOS)


@settings(max_examples=60, deadline=None)
@given(requests(), backends(), configs(), st.data())
def test_aborts_at_any_time_hurt_nobody_else(
    workload: list[GenerateRequest], backend: FakeBackend, config: EngineConfig, data: st.DataObject
) -> None:
    driver = Driver(backend, config)
    for request in workload:
        driver.add(request)
    names = [request.request_id for request in workload]
    aborts = data.draw(st.dictionaries(st.sampled_from(names), st.integers(0, 8)))
    for step in range(9):
        for name, when in aborts.items():
            if when == step:
                driver.abort(name)
                driver.abort(name)
        if driver.scheduler.has_work:
            driver.step()
    driver.run()
    alone = FakeBackend(
        vocab_size=VOCAB, max_model_len=MAX_LEN, block_size=backend.info.block_size, num_blocks=MAX_LEN
    )
    for request in workload:
        for index in range(request.n):
            answer = driver.answers[request.request_id, index]
            want = plain_answer(request, index, alone, EOS)
            assert answer.finished is not None
            if answer.finished.reason == "abort":
                assert request.request_id in aborts
                assert answer.tokens == want.tokens[: len(answer.tokens)]
            else:
                assert answer == want


def test_preemption_happens_and_changes_nothing() -> None:
    """Eight answers of 30 tokens that need 12 blocks each, in 14 blocks and in 200."""
    workload = [
        GenerateRequest(
            request_id=f"r{i}",
            prompt_ids=tuple(range(i, i + 6)),
            params=SamplingParams(
                max_tokens=30, ignore_eos=True, seed=i, temperature=i % 2, prompt_logprobs=1, logprobs=1
            ),
        )
        for i in range(8)
    ]

    def serve(num_blocks: int) -> Driver:
        driver = Driver(
            FakeBackend(vocab_size=VOCAB, max_model_len=MAX_LEN, block_size=3, num_blocks=num_blocks),
            EngineConfig(max_num_seqs=8, max_num_batched_tokens=16),
        )
        for request in workload:
            driver.add(request)
        driver.run()
        return driver

    tight, roomy = serve(14), serve(200)
    assert tight.scheduler.num_preemptions > 0
    assert roomy.scheduler.num_preemptions == 0
    assert tight.answers == roomy.answers


def test_preempted_in_the_middle_of_a_scored_prompt() -> None:
    """The first answer grows into the second's blocks while the second's prompt is still coming in: places
    scored before are not scored again."""
    backend = FakeBackend(vocab_size=VOCAB, max_model_len=MAX_LEN, block_size=1, num_blocks=MAX_LEN)
    driver = Driver(backend, EngineConfig(max_num_seqs=2, max_num_batched_tokens=3))
    first = SamplingParams(seed=1, max_tokens=28, ignore_eos=True)
    second = SamplingParams(seed=2, max_tokens=3, ignore_eos=True, prompt_logprobs=1)
    workload = [
        GenerateRequest(request_id="first", prompt_ids=(1,) * 12, params=first),
        GenerateRequest(request_id="second", prompt_ids=tuple(range(22)), params=second),
    ]
    for request in workload:
        driver.add(request)
    while not driver.scheduler.num_preemptions:
        driver.step()
    computed = [
        row.num_computed + row.num_new for plan in driver.plans for row in plan.rows if row.sequence_id
    ]
    assert 0 < max(computed) < 22, "in the middle"
    driver.run()
    alone = FakeBackend(vocab_size=VOCAB, max_model_len=MAX_LEN, block_size=1, num_blocks=MAX_LEN)
    for request in workload:
        assert driver.answers[request.request_id, 0] == plain_answer(request, 0, alone, EOS)


def test_a_prompt_starts_only_when_all_of_it_fits_beside_the_others() -> None:
    """A scored prompt advances in chunks of 128 and leaves budget over; the blocks it still needs are not
    given to whoever comes next, only to be taken back."""
    backend = FakeBackend(max_model_len=400, block_size=16, num_blocks=30)
    driver = Driver(backend, EngineConfig(max_num_seqs=4, max_num_batched_tokens=512))
    scored = SamplingParams(seed=0, max_tokens=1, prompt_logprobs=0)
    driver.add(GenerateRequest(request_id="scored", prompt_ids=(1,) * 300, params=scored))
    plain = SamplingParams(seed=0, max_tokens=1)
    driver.add(GenerateRequest(request_id="plain", prompt_ids=(2,) * 300, params=plain))
    driver.add(GenerateRequest(request_id="short", prompt_ids=(2,), params=plain))
    driver.run()
    assert driver.scheduler.num_preemptions == 0
    order = [[(row.sequence_id, row.num_new) for row in plan.rows] for plan in driver.plans]
    assert order == [[(0, 128)], [(0, 128)], [(0, 44)], [(1, 300), (2, 1)]]


def test_a_long_prompt_does_not_hold_up_running_answers() -> None:
    """Running sequences get a token in every step while a prompt of ten chunks comes in (case Q5)."""
    backend = FakeBackend(max_model_len=200, num_blocks=100)
    driver = Driver(backend, EngineConfig(max_num_seqs=4, max_num_batched_tokens=16))
    answer = SamplingParams(max_tokens=40, ignore_eos=True, seed=1)
    for i in range(2):
        driver.add(GenerateRequest(request_id=f"short{i}", prompt_ids=(50 + i, 2), params=answer))
    driver.step()
    driver.add(GenerateRequest(request_id="long", prompt_ids=(9,) * 140, params=answer))
    for _ in range(10):
        plan = driver.step()
        assert [row.num_new for row in plan.rows] == [1, 1, 14]
    assert driver.step().rows[2].num_new == 1


def test_whoever_waits_starts_when_a_place_is_free() -> None:
    driver = Driver(FakeBackend(), EngineConfig(max_num_seqs=2, max_num_batched_tokens=64))
    for i in range(4):
        params = SamplingParams(max_tokens=2 + i, ignore_eos=True, seed=0)
        driver.add(GenerateRequest(request_id=f"r{i}", prompt_ids=(i,), params=params))
    rows = [[row.sequence_id for row in driver.step().rows] for _ in range(7)]
    assert rows == [[0, 1], [0, 1], [1, 2], [2, 3], [2, 3], [2, 3], [3]]


def test_scored_prompts_advance_in_bounded_chunks() -> None:
    backend = FakeBackend(max_model_len=600, block_size=16, num_blocks=60)
    driver = Driver(backend, EngineConfig(max_num_batched_tokens=512))
    params = SamplingParams(max_tokens=0, prompt_logprobs=0, seed=0)
    prompt = tuple(i % 64 for i in range(500))
    driver.add(GenerateRequest(request_id="r", prompt_ids=prompt, params=params))
    driver.run()
    assert max(len(row.outputs) for plan in driver.plans for row in plan.rows) == 128
    scores = driver.answers["r", 0].scores
    assert scores is not None
    assert [score.token for score in scores] == list(prompt[1:])

# SPDX-License-Identifier: Apache-2.0
"""Cases Q5, Q6, Q8 and Q10 in steps and blocks, over the fake backend."""

from __future__ import annotations

import random
from dataclasses import replace

from headrace.core.config import EngineConfig
from headrace.core.request import GenerateRequest, SamplingParams
from headrace.runner.backends.fake import FakeBackend
from unit.engine.driver import EOS, Driver, plain_answer

ANSWER = SamplingParams(temperature=0, seed=0, max_tokens=12, ignore_eos=True)


def request(name: str, num_prompt: int, params: SamplingParams = ANSWER) -> GenerateRequest:
    draw = random.Random(name)
    ids = tuple(draw.randrange(64) for _ in range(num_prompt))
    return GenerateRequest(request_id=name, prompt_ids=ids, params=params)


def first_token_steps(driver: Driver, name: str) -> float:
    """Steps from arrival to the first token: the driver's clock ticks once a step."""
    first = driver.answers[name, 0].first
    assert first is not None
    return first.wait.total_s


def roomy(max_num_seqs: int = 32) -> Driver:
    backend = FakeBackend(max_model_len=9000, block_size=16, num_blocks=3000)
    return Driver(backend, EngineConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=64))


def test_q5_running_answers_move_on_in_every_step_of_a_long_prompt() -> None:
    driver = roomy()
    streams = [f"s{i}" for i in range(4)]
    for name in streams:
        driver.add(request(name, 10, replace(ANSWER, max_tokens=400)))
    while driver.scheduler.num_waiting or any(s.num_left > 1 for s in driver.scheduler.running):
        driver.step()
    driver.add(request("long", 8000))
    num_steps = 0
    before = {name: len(driver.answers[name, 0].tokens) for name in streams}
    while driver.answers["long", 0].first is None:
        plan = driver.step()
        assert plan.num_tokens <= 64
        num_steps += 1
    assert num_steps >= 8000 / 60
    for name in streams:
        assert len(driver.answers[name, 0].tokens) - before[name] == num_steps


def test_q6_short_prompts_have_their_first_token_within_a_few_chunks() -> None:
    """Two long ones, then twenty short ones; the long ones are not starved either."""
    driver = roomy()
    driver.add(request("long0", 4000))
    driver.add(request("long1", 4000))
    for i in range(20):
        driver.step()
        driver.step()
        driver.add(request(f"short{i}", 40))
    driver.run()
    assert max(first_token_steps(driver, f"short{i}") for i in range(20)) <= 5
    # 8,000 tokens of the long ones, of which those that came first get half at least.
    assert first_token_steps(driver, "long0") <= 4000 / 24
    assert first_token_steps(driver, "long1") <= 8000 / 48


def test_q8_blocks_are_all_back_after_a_thousand_aborts() -> None:
    draw = random.Random(8)
    backend = FakeBackend(max_model_len=160, block_size=4, num_blocks=60)
    driver = Driver(backend, EngineConfig(max_num_seqs=6, max_num_batched_tokens=32))
    for number in range(1000):
        driver.add(request(f"r{number}", draw.randrange(1, 60)))
        for _ in range(draw.randrange(0, 4)):
            if driver.scheduler.has_work:
                victim = f"r{draw.randrange(max(0, number - 8), number + 1)}"
                driver.step(abort_meanwhile=victim if draw.random() < 0.25 else None)
        if draw.random() < 0.25:
            driver.abort(f"r{draw.randrange(max(0, number - 8), number + 1)}")
    driver.run()
    reasons = [answer.finished.reason for answer in driver.answers.values() if answer.finished]
    assert len(reasons) == 1000
    assert 200 < reasons.count("abort") < 800
    assert driver.scheduler.pool.num_free == 60
    longest = request("longest", 100, replace(ANSWER, max_tokens=60))
    driver.add(longest)
    driver.run()
    alone = FakeBackend(max_model_len=160, block_size=4, num_blocks=60)
    assert driver.answers["longest", 0] == plain_answer(longest, 0, alone, EOS)


def test_q10_what_is_kept_never_takes_more_than_the_pool() -> None:
    """Two conversations whose K/V together are thrice the cache, in turns."""
    backend = FakeBackend(max_model_len=200, block_size=4, num_blocks=30)
    driver = Driver(backend, EngineConfig(max_num_seqs=2, max_num_batched_tokens=64))
    for turn in range(10):
        for name in "ab":
            talk = GenerateRequest(
                request_id=f"{name}{turn}",
                prompt_ids=request(name, 100).prompt_ids[: 50 + 5 * turn],
                params=ANSWER,
            )
            driver.add(talk)
            driver.run()
            assert driver.scheduler.pool.num_kept <= 30
            alone = FakeBackend(max_model_len=200, block_size=4, num_blocks=50)
            assert driver.answers[talk.request_id, 0] == plain_answer(talk, 0, alone, EOS)
    assert driver.scheduler.index.num_evicted > 0

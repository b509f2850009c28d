# SPDX-License-Identifier: Apache-2.0
"""Giving requests up: exactly theirs, in any phase, and at a cost that does not grow with the company."""

from __future__ import annotations

import time
from dataclasses import replace

from headrace.core.config import EngineConfig
from headrace.core.events import Finished
from headrace.core.request import GenerateRequest, SamplingParams
from headrace.kv.invariants import check_idle
from headrace.runner.backends.fake import FakeBackend
from unit.engine.driver import Driver

REQUEST = GenerateRequest(
    request_id="", prompt_ids=(1, 2), params=SamplingParams(seed=1, max_tokens=8, ignore_eos=True)
)


def loaded(num_requests: int, n: int = 1) -> Driver:
    backend = FakeBackend(num_blocks=12)
    driver = Driver(backend, EngineConfig(max_num_seqs=4, max_num_batched_tokens=8))
    for number in range(num_requests):
        driver.add(replace(REQUEST, request_id=f"r{number}", n=n))
    return driver


def test_a_request_takes_all_its_sequences_and_no_other() -> None:
    driver = loaded(4, n=3)
    driver.step()
    driver.step()
    assert driver.scheduler.num_running == 4  # r0 whole and one of r1; the rest waits
    driver.abort("r1")
    assert sorted(s.request_id for s in driver.scheduler.sequences()) == ["r0"] * 3 + ["r2"] * 3 + ["r3"] * 3
    assert driver.scheduler.drop("r1") == []
    assert driver.scheduler.drop("nobody") == []
    driver.run()
    reasons = {key: answer.finished.reason for key, answer in driver.answers.items() if answer.finished}
    assert reasons == {
        (f"r{number}", index): "abort" if number == 1 else "length"
        for number in range(4)
        for index in range(3)
    }


def test_a_name_may_come_again() -> None:
    driver = loaded(1)
    driver.run()
    assert driver.scheduler.drop("r0") == []
    driver.answers.clear()
    driver.add(replace(REQUEST, request_id="r0"))
    driver.abort("r0")
    assert driver.answers["r0", 0].finished == Finished("r0", 0, "abort", 2, 0)
    check_idle(driver.scheduler.pool)


def test_dropping_thousands_takes_no_time() -> None:
    """Each costs the same whoever else is there: 6000 among 6000 would be 36 million looks otherwise."""
    driver = loaded(6000)
    driver.step()
    begin_s = time.thread_time()
    for number in range(5999, -1, -1):
        assert len(driver.scheduler.drop(f"r{number}")) == 1
    assert time.thread_time() - begin_s < 0.5
    assert not driver.scheduler.has_work

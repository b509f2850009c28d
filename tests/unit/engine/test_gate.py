# SPDX-License-Identifier: Apache-2.0
"""Who is let in: queues with bounds, targets that can be met, and what those who are not are told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError, Overloaded, RequestError
from headrace.core.events import Event, Finished, FirstToken
from headrace.core.plan import BackendInfo
from headrace.core.request import GenerateRequest, SamplingParams
from headrace.engine.admission import check_request
from headrace.engine.loop import Engine
from headrace.runner.backends.fake import FakeBackend

REQUEST = GenerateRequest(
    request_id="", prompt_ids=(1, 2, 3), params=SamplingParams(seed=1, max_tokens=30, ignore_eos=True)
)
Make = Callable[..., Engine]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Engine] = []

    def engine(step_s: float = 0.0, **config: object) -> Engine:
        backend = FakeBackend(num_blocks=200, step_s=step_s)
        made.append(Engine(backend, EngineConfig(max_num_seqs=2, **config)))  # type: ignore[arg-type]
        return made[-1]

    yield engine
    for one in made:
        one.close()


def requests(count: int, name: str = "r") -> list[GenerateRequest]:
    return [replace(REQUEST, request_id=f"{name}{i}") for i in range(count)]


def ignore(event: Event) -> None:
    pass


def test_the_queue_holds_what_it_may_beside_those_who_run(make: Make) -> None:
    engine = make(max_num_queued_reqs=3)
    for request in requests(5):
        engine.submit(request, ignore)
    with pytest.raises(Overloaded, match="5 requests wait already, and at most 3 may") as caught:
        engine.submit(replace(REQUEST, request_id="more"), ignore)
    assert caught.value.status == 429
    assert caught.value.code == "queue_full"
    with pytest.raises(Overloaded):
        engine.check_room(1)
    assert engine.stats().num_refused_queue_full == 2
    engine.start()
    assert engine.drain(20)
    assert engine.stats().num_waiting == 0


def test_a_call_is_let_in_whole_or_not_at_all(make: Make) -> None:
    engine = make(max_num_queued_reqs=3)
    engine.submit_all(requests(3), ignore)
    with pytest.raises(Overloaded):
        engine.submit_all(requests(3, "s"), ignore)
    engine.submit_all(requests(2, "s"), ignore)  # the names are free, and so are two places
    assert engine.stats().num_waiting == 5


def test_a_call_larger_than_the_queue_is_served_when_nobody_is_there(make: Make) -> None:
    engine = make(max_num_queued_reqs=3)
    engine.submit_all(requests(20), ignore)
    engine.start()
    assert engine.drain(20)


def test_the_queue_may_be_bounded_by_tokens(make: Make) -> None:
    engine = make(max_num_queued_tokens=20)
    for request in requests(6):  # 3 tokens each; the last comes while 15 wait
        engine.submit(request, ignore)
    with pytest.raises(Overloaded, match="18 prompt tokens wait already, and at most 20 may"):
        engine.submit(replace(REQUEST, request_id="more"), ignore)


@pytest.mark.parametrize("limit", [{"max_num_queued_reqs": 0}, {"max_num_queued_tokens": 2}])
def test_who_finds_no_room_is_told_when_there_is(make: Make, limit: dict[str, int]) -> None:
    """Also where nobody waits yet."""
    engine = make(step_s=0.01, **limit)
    heard: list[Event] = []
    engine.start()
    engine.submit_all(requests(2), heard.append)
    while len(heard) < 10:
        time.sleep(0.001)
    with pytest.raises(Overloaded) as caught:
        engine.submit(replace(REQUEST, request_id="more"), ignore)
    if "max_num_queued_reqs" in limit:
        assert 0.05 < caught.value.retry_after_s < 1.0, "some 25 steps of a hundredth"
    else:
        assert caught.value.retry_after_s >= 0
    assert engine.drain(20)


def test_a_target_out_of_reach_is_refused_and_one_within_is_not(make: Make) -> None:
    engine = make(step_s=0.02)
    engine.start()
    done = threading.Event()
    engine.submit(
        replace(REQUEST, request_id="first"),
        lambda event: done.set() if isinstance(event, Finished) else None,
    )
    assert done.wait(20)
    engine.submit_all(requests(8), ignore)  # four turns of 30 steps
    with pytest.raises(Overloaded, match="is expected within") as caught:
        engine.submit(replace(REQUEST, request_id="soon", ttft_slo_s=0.3), ignore)
    assert caught.value.code == "slo_unreachable"
    assert caught.value.predicted_ttft_s is not None
    assert caught.value.predicted_ttft_s > 0.3
    assert caught.value.retry_after_s == pytest.approx(caught.value.predicted_ttft_s - 0.3, rel=0.2)
    first = threading.Event()
    engine.submit(
        replace(REQUEST, request_id="later", ttft_slo_s=60.0),
        lambda event: first.set() if isinstance(event, FirstToken) else None,
    )
    assert first.wait(30)
    assert engine.stats().num_refused_slo == 1


def test_a_target_that_no_machine_meets_says_so(make: Make) -> None:
    engine = make(step_s=0.02)
    engine.start()
    done = threading.Event()
    engine.submit(
        replace(REQUEST, request_id="first"),
        lambda event: done.set() if isinstance(event, Finished) else None,
    )
    assert done.wait(20)
    with pytest.raises(Overloaded, match="even on an idle server"):
        engine.submit(replace(REQUEST, request_id="now", ttft_slo_s=1e-4), ignore)


@pytest.mark.parametrize("target", [0.0, -1.0, float("nan"), float("inf")])
def test_targets_that_are_none(target: float) -> None:
    with pytest.raises(RequestError) as caught:
        replace(REQUEST, ttft_slo_s=target)
    assert caught.value.param == "slo_ttft_ms"


def test_deterministic_is_refused_where_it_cannot_be_promised() -> None:
    info = BackendInfo(vocab_size=64, max_model_len=64, block_size=4, num_blocks=16)
    request = replace(REQUEST, deterministic=True)
    with pytest.raises(RequestError, match="deterministic cannot be promised here") as caught:
        check_request(request, info)
    assert caught.value.param == "deterministic"
    check_request(request, replace(info, is_batch_invariant=True))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_itl_ms", 0.0),
        ("max_itl_ms", float("nan")),
        ("max_num_queued_reqs", -1),
        ("max_num_queued_tokens", -1),
        ("tenant_weights", (("a", 0.0),)),
    ],
)
def test_settings_that_make_no_sense(field: str, value: object) -> None:
    with pytest.raises(ConfigError):
        EngineConfig(**{field: value})  # type: ignore[arg-type]

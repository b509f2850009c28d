# SPDX-License-Identifier: Apache-2.0
"""The engine as its callers meet it: threads, aborts in every phase, broken sinks, failing backends, ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from headrace.core.config import EngineConfig
from headrace.core.errors import EngineStopped, RequestError
from headrace.core.events import Event, Failed, Finished, PromptScored, TokenEvent
from headrace.core.plan import RowResult, StepPlan, StepResult
from headrace.core.request import GenerateRequest, SamplingParams
from headrace.engine.loop import MAX_FAILED_STEPS, Engine
from headrace.runner.backends.fake import FakeBackend
from unit.engine.driver import EOS, plain_answer

WAIT_S = 20.0


class Ear:
    """A sink that remembers, and can be waited on."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait(self, condition: Callable[[list[Event]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self.events), WAIT_S), self.events

    def wait_last(self, count: int = 1) -> Event:
        self.wait(lambda events: len(last_words(events)) >= count)
        return last_words(self.events)[-1]

    @property
    def ids(self) -> list[int]:
        return [t.token for event in self.events if isinstance(event, TokenEvent) for t in event.tokens]


def last_words(events: list[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, Finished | Failed)]


def request(name: str, num_prompt: int = 3, n: int = 1, **params: Any) -> GenerateRequest:
    settings = SamplingParams(**({"seed": 1, "ignore_eos": True, "max_tokens": 5} | params))
    return GenerateRequest(request_id=name, prompt_ids=tuple(range(num_prompt)), params=settings, n=n)


@pytest.fixture
def make() -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def engine(backend: FakeBackend | None = None, start: bool = True, **config: int) -> Engine:
        limits = {"max_num_seqs": 4, "max_num_batched_tokens": 8} | config
        made = Engine(backend or FakeBackend(), EngineConfig(**limits), EOS)
        engines.append(made)
        if start:
            made.start()
        return made

    yield engine
    for made in engines:
        made.close()


Make = Callable[..., Engine]


def test_answers_many_threads(make: Make) -> None:
    backend = FakeBackend(num_blocks=70)
    engine = make(backend)
    ears = {f"{t}-{i}": Ear() for t in range(4) for i in range(10)}

    def client(t: int) -> None:
        for i in range(10):
            engine.submit(request(f"{t}-{i}", num_prompt=1 + t + i, temperature=0.9), ears[f"{t}-{i}"])

    threads = [threading.Thread(target=client, args=(t,)) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert engine.drain(WAIT_S)
    alone = FakeBackend(num_blocks=70)
    for name, ear in ears.items():
        t, i = map(int, name.split("-"))
        want = plain_answer(request(name, num_prompt=1 + t + i, temperature=0.9), 0, alone, EOS)
        assert ear.ids == want.ids
        assert last_words(ear.events) == [want.finished]
        assert ear.events[-1] == want.finished
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_usage) == (0, 0, 0.0)
    assert stats.num_output_tokens == 200
    assert stats.num_steps == backend.num_steps
    assert 0 < stats.native_s <= stats.step_s


def test_idle_computes_nothing_and_uses_no_time(make: Make) -> None:
    backend = FakeBackend()
    engine = make(backend)
    ear = Ear()
    engine.submit(request("a"), ear)
    ear.wait_last()
    steps = backend.num_steps
    begin_s = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - begin_s < 0.1
    assert backend.num_steps == steps
    engine.submit(request("b"), ear)
    ear.wait_last(2)


def test_abort_while_running(make: Make) -> None:
    engine = make(FakeBackend(step_s=0.002))
    ear, other = Ear(), Ear()
    engine.submit(request("a", max_tokens=200, n=2), ear)
    engine.submit(request("b", max_tokens=30), other)
    ear.wait(lambda events: len(events) > 4)
    engine.abort("a")
    ear.wait_last(2)
    assert [event.reason for event in last_words(ear.events) if isinstance(event, Finished)] == ["abort"] * 2
    assert other.wait_last() == Finished("b", 0, "length", 3, 30)
    assert engine.drain(WAIT_S)
    assert engine.stats().num_free_blocks == engine.stats().num_blocks
    assert len(last_words(ear.events)) == 2


def test_abort_while_waiting_and_in_the_middle_of_a_prompt(make: Make) -> None:
    engine = make(FakeBackend(step_s=0.005, max_model_len=2000, num_blocks=500), max_num_seqs=1)
    running, waiting = Ear(), Ear()
    engine.submit(request("long", num_prompt=64, max_tokens=1000), running)
    engine.submit(request("next"), waiting)
    engine.abort("next")
    assert waiting.wait_last() == Finished("next", 0, "abort", 3, 0)
    engine.abort("long")
    assert running.wait_last() == Finished("long", 0, "abort", 64, 0)
    assert engine.stats().num_steps < 8, "64 tokens in chunks of 8 would have been 8 steps"


def test_abort_before_the_start_after_the_end_and_of_nobody(make: Make) -> None:
    engine = make(start=False)
    ear = Ear()
    engine.submit(request("a"), ear)
    engine.abort("a")
    engine.abort("nobody")
    engine.start()
    assert ear.wait_last() == Finished("a", 0, "abort", 3, 0)
    engine.abort("a")
    engine.submit(request("a"), ear)
    assert ear.wait_last(2) == Finished("a", 0, "length", 3, 5)
    assert len(ear.events) == 8  # with FirstToken


def test_a_sink_may_call_the_engine(make: Make) -> None:
    engine = make()
    ear, second = Ear(), Ear()

    def sink(event: Event) -> None:
        ear(event)
        if len(ear.events) == 2:
            engine.abort("a")
            engine.submit(request("b"), second)

    engine.submit(request("a", max_tokens=100), sink)
    assert ear.wait_last() == Finished("a", 0, "abort", 3, 2)
    second.wait_last()


def test_a_sink_that_raises_loses_only_its_own_request(make: Make) -> None:
    engine = make()
    ear = Ear()
    calls = 0

    def broken(event: Event) -> None:
        nonlocal calls
        calls += 1
        raise ZeroDivisionError

    engine.submit(request("bad", max_tokens=100, n=2), broken)
    engine.submit(request("good"), ear)
    assert ear.wait_last() == Finished("good", 0, "length", 3, 5)
    assert engine.drain(WAIT_S)
    assert calls == 1
    assert engine.alive
    assert engine.stats().kv_usage == 0


def test_a_failing_step_loses_only_its_requests(make: Make) -> None:
    engine = make(FakeBackend(fail_at={2}), max_num_seqs=2, start=False)
    ears = [Ear() for _ in range(3)]
    for i, ear in enumerate(ears):
        engine.submit(request(f"r{i}", n=2 if i == 0 else 1), ear)
    engine.start()
    failed = ears[0].wait_last()
    assert isinstance(failed, Failed)
    assert "told to fail at step 2" in failed.message
    for i in (1, 2):
        assert ears[i].wait_last() == Finished(f"r{i}", 0, "length", 3, 5)
    assert len(last_words(ears[0].events)) == 1
    assert engine.alive
    assert engine.drain(WAIT_S)
    assert engine.stats().kv_usage == 0


def test_a_backend_that_keeps_failing_ends_the_engine(make: Make) -> None:
    engine = make(FakeBackend(fail_at=range(1000)), max_num_seqs=1, start=False)
    ears = [Ear() for _ in range(MAX_FAILED_STEPS + 3)]
    for i, ear in enumerate(ears):
        engine.submit(request(f"r{i}"), ear)
    engine.start()
    for ear in ears:
        assert isinstance(ear.wait_last(), Failed)
        assert len(ear.events) == 1
    deadline = time.monotonic() + WAIT_S
    while engine.alive and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not engine.alive
    with pytest.raises(EngineStopped, match="dead"):
        engine.submit(request("late"), Ear())
    assert engine.drain(0.1)


class WrongAnswers(FakeBackend):
    """Answers the rows in the wrong order."""

    def execute(self, plan: StepPlan) -> StepResult:
        result = super().execute(plan)
        return StepResult(rows=result.rows[::-1], native_s=0.0)


def test_a_wrong_answer_fails_the_step_before_anything_moves(make: Make) -> None:
    engine = make(WrongAnswers(), start=False)
    ears = [Ear(), Ear()]
    for i, ear in enumerate(ears):
        engine.submit(request(f"r{i}"), ear)
    engine.start()
    for ear in ears:
        assert isinstance(ear.wait_last(), Failed)
    lone = Ear()
    engine.submit(request("alone"), lone)
    assert lone.wait_last() == Finished("alone", 0, "length", 3, 5)


class BreaksRows(FakeBackend):
    """Rows that hold this token break, the others do not."""

    token = 20

    def execute(self, plan: StepPlan) -> StepResult:
        result = super().execute(plan)
        rows = [
            RowResult(row.sequence_id, (), error="no number") if self.token in row.tokens else answer
            for row, answer in zip(plan.rows, result.rows, strict=True)
        ]
        return replace(result, rows=tuple(rows))


def test_a_row_that_breaks_fails_its_own_request(make: Make) -> None:
    """Both of its sequences, in the middle of its prompt; who computes beside it goes on as if alone."""
    engine = make(BreaksRows(vocab_size=21), max_num_batched_tokens=64, start=False)
    broken, good = Ear(), Ear()
    engine.submit(request("broken", num_prompt=21, n=2), broken)
    engine.submit(request("good", max_tokens=20, logit_bias=((20, -100.0),)), good)
    engine.start()
    assert broken.wait_last() == Failed("broken", "no number")
    assert good.wait_last() == Finished("good", 0, "length", 3, 20)
    wanted = plain_answer(
        request("good", max_tokens=20, logit_bias=((20, -100.0),)), 0, FakeBackend(vocab_size=21), EOS
    )
    assert good.ids == wanted.ids
    assert engine.drain(WAIT_S)
    assert engine.alive
    assert engine.stats().num_free_blocks == engine.stats().num_blocks


def test_drain_takes_nothing_new_and_finishes_the_rest(make: Make) -> None:
    engine = make(FakeBackend(step_s=0.005))
    ear = Ear()
    engine.submit(request("a", max_tokens=100), ear)
    assert not engine.drain(0.02)
    with pytest.raises(EngineStopped, match="draining"):
        engine.submit(request("b"), ear)
    assert engine.alive
    assert engine.drain(WAIT_S)
    assert ear.wait_last() == Finished("a", 0, "length", 3, 100)


@pytest.mark.parametrize("start", [True, False])
def test_close_answers_everybody_and_may_be_called_twice(make: Make, start: bool) -> None:
    backend = FakeBackend(step_s=0.002)
    engine = make(backend, start=start, max_num_seqs=2)
    ears = [Ear() for _ in range(6)]
    for i, ear in enumerate(ears):
        engine.submit(request(f"r{i}", max_tokens=200), ear)
    engine.close()
    engine.close()
    for ear in ears:
        last = ear.wait_last()
        assert isinstance(last, Finished)
        assert last.reason == "abort"
        assert len(last_words(ear.events)) == 1
    assert backend.is_closed
    assert not engine.alive
    with pytest.raises(EngineStopped, match="closed"):
        engine.submit(request("late"), Ear())


def test_a_request_id_in_use_is_refused(make: Make) -> None:
    engine = make(FakeBackend(step_s=0.005))
    ear = Ear()
    engine.submit(request("a", max_tokens=50), ear)
    with pytest.raises(RequestError, match="'a' is running already"):
        engine.submit(request("a"), Ear())
    engine.abort("a")
    ear.wait_last()


def test_a_refused_request_leaves_nothing_behind(make: Make) -> None:
    engine = make()
    with pytest.raises(RequestError):
        engine.submit(request("a", num_prompt=10_000), Ear())
    assert engine.drain(0.1)


def test_end_ids_beyond_the_vocabulary_do_no_harm() -> None:
    engine = Engine(FakeBackend(), eos_ids=frozenset({3, 10**6}))
    ear = Ear()
    engine.submit(request("a", min_tokens=2, ignore_eos=False), ear)
    engine.start()
    ear.wait_last()
    engine.close()


def test_ids_that_the_tokenizer_lacks_are_neither_drawn_nor_listed_nor_taken() -> None:
    """Case C11: an embedding of 64 rows under a tokenizer of 41 tokens."""
    engine = Engine(FakeBackend(max_model_len=512, num_blocks=128), eos_ids=EOS, vocab_size=41)
    engine.start()
    try:
        assert engine.info.vocab_size == 41
        ear = Ear()
        engine.submit(request("r", temperature=5.0, max_tokens=500, logprobs=20, prompt_logprobs=20), ear)
        ear.wait_last()
        results = [t for event in ear.events if isinstance(event, TokenEvent) for t in event.tokens]
        results += [t for event in ear.events if isinstance(event, PromptScored) for t in event.tokens]
        assert len(results) == 502
        assert {t.token for t in results} == set(range(41))
        assert max(token for t in results for token, _ in t.top) == 40
        for refused in (
            GenerateRequest(request_id="p", prompt_ids=(41,)),
            request("b", logit_bias=((41, 1.0),)),
            request("s", stop_token_ids=(41,)),
        ):
            with pytest.raises(RequestError, match="token id 41, but this model's ids are 0 to 40"):
                engine.submit(refused, ear)
        last = Ear()
        engine.submit(
            GenerateRequest(request_id="l", prompt_ids=(40,), params=SamplingParams(max_tokens=1)), last
        )
        assert isinstance(last.wait_last(), Finished)
    finally:
        engine.close()

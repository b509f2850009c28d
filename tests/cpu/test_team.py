# SPDX-License-Identifier: Apache-2.0
"""The native thread pool when something goes wrong around it: exceptions on any thread, no memory or threads,
forks, an interpreter that ends, two callers at once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from random_models import random_model

from headrace import _native
from headrace.core.plan import OutputPlan, RowPlan, StepPlan
from headrace.runner.backends.cpu import CpuBackend, load_cpu_backend

HERE = Path(__file__).parent
needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")


def load(num_threads: int = 3) -> CpuBackend:
    model = random_model("llama", matrices="Q8_0", context_length=200_000)
    return load_cpu_backend(model, num_threads=num_threads, max_model_len=200_000, kv_cache_bytes=64 << 20)


def prompt(length: int) -> StepPlan:
    blocks = tuple(range(length // 16 + 1))
    outputs = (OutputPlan(length - 1, None, 3, 5),)
    return StepPlan((RowPlan(1, tuple(i % 300 for i in range(length)), 0, blocks, outputs),))


def run_apart(script: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which may end badly; `load`, `prompt` and `_native` are there."""
    prelude = "import os, resource, sys, threading, time\nfrom test_team import _native, load, prompt\n"
    return subprocess.run(
        [sys.executable, "-c", prelude + script],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("num_threads", [1, 2, 3, 8])
def test_what_one_thread_throws_ends_all_and_is_raised(num_threads: int) -> None:
    team = _native.Team(num_threads)
    for times in (1, 2, 7):
        for breaking in range(num_threads):
            with pytest.raises(MemoryError):
                _native.testing.meet(team, times, breaking)
            _native.testing.meet(team, times)


@pytest.mark.parametrize("num_threads", [0, -1])
def test_a_team_has_threads(num_threads: int) -> None:
    with pytest.raises(ValueError, match="at least one thread"):
        _native.Team(num_threads)


def test_two_steps_at_once_are_refused() -> None:
    backend = load()
    want = backend.execute(prompt(300)).rows
    refused: list[str] = []

    def compute() -> None:
        for _ in range(100):
            try:
                assert backend.execute(prompt(300)).rows == want
            except RuntimeError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=compute) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(refused) == {"the compute threads serve one caller at a time"}
    assert backend.execute(prompt(300)).rows == want


def test_two_backends_at_once() -> None:
    backends = [load(), load()]
    want = backends[0].execute(prompt(300)).rows
    results: list[bool] = []

    def compute(backend: CpuBackend) -> None:
        results.extend(backend.execute(prompt(300)).rows == want for _ in range(50))

    threads = [threading.Thread(target=compute, args=(backend,)) for backend in backends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 100


@needs_proc
@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_step_without_memory_fails_and_the_next_one_works(num_threads: int) -> None:
    ended = run_apart(f"""
backend = load({num_threads})
want = backend.execute(prompt(20)).rows
plan = prompt(100_000)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20), -1))
try:
    backend.execute(plan)
except MemoryError:
    print("no memory")
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
print(backend.execute(prompt(20)).rows == want)
""")
    assert ended.stdout.split("\n")[:2] == ["no memory", "True"], ended.stderr


@needs_proc
def test_more_threads_than_the_system_gives() -> None:
    ended = run_apart("""
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20), -1))
try:
    _native.Team(500)
except RuntimeError as error:
    print(error)
""")
    assert "Resource temporarily unavailable" in ended.stdout, ended.stderr


def test_a_forked_process_is_told_and_ends() -> None:
    ended = run_apart("""
backend = load()
want = backend.execute(prompt(20)).rows
child = os.fork()
if not child:
    try:
        backend.execute(prompt(20))
    except RuntimeError as error:
        print(error, flush=True)
    del backend
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), backend.execute(prompt(20)).rows == want)
""")
    assert "forked from; load the model here" in ended.stdout
    assert "3 True" in ended.stdout, ended.stderr


def test_the_interpreter_ends_while_a_step_runs() -> None:
    ended = run_apart("""
def compute(backend=load()):
    while True:
        backend.execute(prompt(2000))
threading.Thread(target=compute, daemon=True).start()
time.sleep(0.3)
""")
    assert ended.returncode == 0, ended.stderr


@needs_proc
def test_sleeping_threads_end_with_their_team() -> None:
    ended = run_apart("""
num_before = len(os.listdir("/proc/self/task"))
backend = load(8)
backend.execute(prompt(20))
time.sleep(0.2)
num_while = len(os.listdir("/proc/self/task"))
del backend
print(num_while - num_before, len(os.listdir("/proc/self/task")) - num_before)
""")
    assert ended.stdout == "7 0\n", ended.stderr

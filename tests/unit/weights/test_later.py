# SPDX-License-Identifier: Apache-2.0
"""Work that can wait is done after its delay, when hurried, or at the end of the process, but for Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

from headrace.weights.packed.later import IsStopped, Later

AT_EXIT = """
import sys, time
from headrace.weights.packed.later import Later
def work(is_stopped):
    print("begun", flush=True)
    end = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < end and not is_stopped():
        time.sleep(0.01)
    print("stopped" if is_stopped() else "done", flush=True)
Later(work, delay_s=1000)
print("leaving", flush=True)
"""


def test_after_a_while() -> None:
    done = threading.Event()
    begin = time.monotonic()
    Later(lambda _: done.set(), delay_s=0.1)
    assert done.wait(10)
    assert time.monotonic() - begin >= 0.1


def test_hurried() -> None:
    done = threading.Event()
    later = Later(lambda _: done.set(), delay_s=1000)
    assert not done.wait(0.05)
    later.hurry()
    assert done.wait(10)


def test_finished() -> None:
    told: list[bool] = []

    def work(is_stopped: IsStopped) -> None:
        time.sleep(0.05)
        told.append(is_stopped())

    later = Later(work, delay_s=1000)
    later.finish()
    assert told == [False]
    later.finish()
    assert told == [False]


def test_a_process_that_ends_waits_for_it() -> None:
    command = [sys.executable, "-c", AT_EXIT, "0.1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["leaving", "begun", "done"], "")


def test_ctrl_c_ends_the_wait() -> None:
    command = [sys.executable, "-c", AT_EXIT, "100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert [process.stdout.readline() for _ in range(2)] == ["leaving\n", "begun\n"]
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "stopped\n"
        assert process.stderr.read() == ""
        assert process.wait(10) == 0

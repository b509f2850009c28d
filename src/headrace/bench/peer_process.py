# SPDX-License-Identifier: Apache-2.0
"""Peers as processes of their own: a crash is theirs alone, and memory and threads are gone between turns."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping, Sequence

from headrace.bench.peers import PeerFailed, Speed

TIMEOUT_S = 1800.0  # a turn; a machine that needs longer is not being measured any more


def output_of(command: Sequence[str]) -> str:
    """What it prints on stdout. Raises PeerFailed with the last thing it said on stderr."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except OSError as error:
        raise PeerFailed(f"cannot run {command[0]}: {error.strerror or error}") from error
    except subprocess.TimeoutExpired as error:
        raise PeerFailed(f"{command[0]} took longer than {TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
        raise PeerFailed(f"ended with {how}: {said[-1].strip()}")
    return done.stdout


def speed_of_script(command: Sequence[str], task: Mapping[str, object]) -> Speed:
    """Run a script that takes its task as JSON and prints its speed as JSON on its last line."""
    lines = output_of([*command, json.dumps(task)]).strip().splitlines()
    try:
        values = json.loads(lines[-1])
        rows = values["rows"]
        speed = Speed(float(values["prompt"]), float(values["decode"]), None if rows is None else float(rows))
    except (IndexError, ValueError, KeyError, TypeError) as error:
        raise PeerFailed("printed no speed that can be read") from error
    return checked(speed)


def checked(speed: Speed) -> Speed:
    for value in (speed.prompt, speed.decode, speed.rows):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise PeerFailed(f"told a speed of {value:g} tokens/s")
    return speed


def has_module(python: str, module: str) -> bool:
    """Whether that interpreter finds the module; it is not imported. No interpreter: no module."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    try:
        return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0
    except OSError:
        return False

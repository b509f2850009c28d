# SPDX-License-Identifier: Apache-2.0
"""The wait for the first token of `headrace run` begins with its imports: what serves HTTP, event loops, hubs
or research stays out of them."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {
    "asyncio",
    "ssl",
    "fastapi",
    "pydantic",
    "uvicorn",
    "huggingface_hub",
    "httpx",
    "torch",
    "transformers",
}
ROOMS = ", ".join(
    f"headrace.{name}"
    for name in (
        "cli.run",
        "cli.conversation",
        "cli.console",
        "engine.loop",
        "engine.build",
        "text.tokenizer",
    )
)


def test_running_a_model_imports_nothing_heavy() -> None:
    code = f"import sys, {ROOMS}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "headrace" in loaded
    assert not loaded & HEAVY

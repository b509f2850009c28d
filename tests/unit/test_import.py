# SPDX-License-Identifier: Apache-2.0
"""What an import costs: counted in modules, not in seconds; the time is only printed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    "torch",
    "numpy",
    "transformers",
    "fastapi",
    "uvicorn",
    "httpx",
    "huggingface_hub",
    "jinja2",
    "tokenizers",
}
WEB = {
    "fastapi",
    "starlette",
    "pydantic",
    "uvicorn",
    "httpx",
    "huggingface_hub",
    "prometheus_client",
    "tqdm",
    "transformers",
    "torch",
}


def modules_after(code: str) -> set[str]:
    """Names of all modules that a fresh interpreter holds after running `code`."""
    script = (
        "import json, sys, time\n"
        "start = time.perf_counter()\n"
        f"{code}\n"
        "print(f'{1000 * (time.perf_counter() - start):.1f} ms', file=sys.stderr)\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    print(f"{code!r}: {done.stderr.strip()}")
    return set(json.loads(done.stdout.splitlines()[-1]))


def roots(modules: set[str]) -> set[str]:
    return {name.split(".")[0] for name in modules}


def test_import_headrace_is_next_to_nothing() -> None:
    before, after = modules_after("pass"), modules_after("import headrace")
    assert not HEAVY & roots(after)
    assert "headrace._native" not in after
    assert {name for name in after if name.startswith("headrace")} == {"headrace"}
    assert len(after - before) < 20  # typing and what it needs


def test_asking_for_sampling_params_loads_no_model_code() -> None:
    after = modules_after("from headrace import SamplingParams; SamplingParams()")
    assert not HEAVY & roots(after)


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["models"], ["pull", "--help"]])
def test_small_commands_import_little(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    code = f"from headrace.cli.main import main\ntry: main({words})\nexcept SystemExit: pass"
    assert not HEAVY & roots(modules_after(code))


def test_the_way_to_the_first_token_imports_no_web_or_hub_library() -> None:
    code = "import headrace.cli.run, headrace.api.llm, headrace.weights.catalogue"
    after = modules_after(code)
    assert not WEB & roots(after)

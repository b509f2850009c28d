# SPDX-License-Identifier: Apache-2.0
"""The environment: unknown and unusable variables are errors that name them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.env import home_directory, read_environment
from headrace.core.errors import ConfigError


def test_home(tmp_path: Path) -> None:
    assert home_directory({"HEADRACE_HOME": str(tmp_path / "not-yet")}) == tmp_path / "not-yet"
    assert home_directory({"HEADRACE_HOME": "~/x"}) == Path.home() / "x"
    assert home_directory({}).name == "headrace"
    assert home_directory({}).is_absolute()
    assert read_environment({"PATH": "/bin", "OTHER": "1"}).home is None


def test_packed_cache_bytes() -> None:
    assert read_environment({}).packed_cache_bytes == 16 * 2**30
    assert read_environment({"HEADRACE_PACKED_CACHE_BYTES": "1000"}).packed_cache_bytes == 1000
    assert read_environment({"HEADRACE_PACKED_CACHE_BYTES": "0"}).packed_cache_bytes == 0


def test_a_relative_home_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert home_directory({"HEADRACE_HOME": "x"}) == tmp_path / "x"


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"HEADRACE_HOEM": "/x"}, "HEADRACE_HOEM is not known. Did you mean HEADRACE_HOME?"),
        ({"HEADRACE_HOME": ""}, "HEADRACE_HOME is empty"),
        ({"HEADRACE_HOME": "~nobody-at-all/x"}, "HEADRACE_HOME='~nobody-at-all/x'"),
        ({"HEADRACE_HOME": __file__}, "is a file"),
        (
            {"HEADRACE_PACKED_CACHE_BYTES": "lots"},
            "HEADRACE_PACKED_CACHE_BYTES='lots' is not a number",
        ),
        ({"HEADRACE_PACKED_CACHE_BYTES": "-1"}, "not a number of bytes"),
        ({"HEADRACE_PACKED_CACHE_BYTES": ""}, "not a number of bytes"),
    ],
)
def test_errors_name_the_variable(variables: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        home_directory(variables)
    assert says in str(error.value)


def test_every_command_stops_at_a_misspelt_variable() -> None:
    environment = dict(os.environ) | {"HEADRACE_THREDS": "2"}
    command = [sys.executable, "-m", "headrace", "models"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("headrace: environment variable HEADRACE_THREDS is not known")

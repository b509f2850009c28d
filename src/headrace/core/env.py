# SPDX-License-Identifier: Apache-2.0
"""The only reader of the process environment. A HEADRACE_* variable that is unknown or cannot be
used is an error that names it, so that a typing mistake never passes in silence. Libraries below us
(pip, the hub client) read their own variables themselves."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import ConfigError

PREFIX = "HEADRACE_"
KNOWN = {
    "HEADRACE_HOME": "the folder that holds pulled models and packed weights",
    "HEADRACE_PACKED_CACHE_BYTES": "how much packed weights may take there; 0 keeps none",
}
PACKED_CACHE_BYTES = 16 * 2**30


@dataclass(frozen=True, slots=True)
class Environment:
    """What HEADRACE_* variables say, checked."""

    home: Path | None = None  # absolute; None: the platform's cache folder
    packed_cache_bytes: int = PACKED_CACHE_BYTES


def read_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """Check every HEADRACE_* variable and return their meaning.

    Args:
        environ: variables to read, the process's own when None.
    """
    variables = os.environ if environ is None else environ
    for name in sorted(variables):
        if name.startswith(PREFIX) and name not in KNOWN:
            raise ConfigError(_unknown(name))
    home = variables.get("HEADRACE_HOME")
    packed = variables.get("HEADRACE_PACKED_CACHE_BYTES")
    return Environment(
        home=None if home is None else _folder("HEADRACE_HOME", home),
        packed_cache_bytes=PACKED_CACHE_BYTES
        if packed is None
        else _count("HEADRACE_PACKED_CACHE_BYTES", packed),
    )


def home_directory(environ: Mapping[str, str] | None = None) -> Path:
    """The folder for everything Headrace keeps: HEADRACE_HOME, or the platform's cache folder.
    It need not exist yet."""
    home = read_environment(environ).home
    if home is not None:
        return home
    from platformdirs import user_cache_dir  # here: not needed when HEADRACE_HOME is set

    return Path(user_cache_dir("headrace", appauthor=False))


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, KNOWN, n=1)
    meant = f" Did you mean {near[0]}?" if near else ""
    return f"environment variable {name} is not known.{meant} Known: {', '.join(sorted(KNOWN))}"


def _folder(name: str, value: str) -> Path:
    if not value.strip():
        raise ConfigError(f"environment variable {name} is empty: give a folder, or unset it")
    try:
        path = Path(value).expanduser().absolute()
    except RuntimeError as error:  # "~nobody" and the like
        raise ConfigError(f"environment variable {name}={value!r}: {error}") from error
    if path.exists() and not path.is_dir():
        raise ConfigError(f"environment variable {name}={value!r} is a file: give a folder")
    return path


def _count(name: str, value: str) -> int:
    if not (value.isascii() and value.isdecimal()):
        raise ConfigError(f"environment variable {name}={value!r} is not a number of bytes: give one, as 0")
    return int(value)

# SPDX-License-Identifier: Apache-2.0
"""Reads recorded traffic: the Azure LLM traces (CSV) and Mooncake's (JSON lines), told apart by their first
line. Says where a file breaks its form."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from headrace.core.errors import ConfigError

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE_FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
MOONCAKE_BLOCK = 512  # tokens that one of its hash ids stands for


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    at_s: float  # since the trace's first
    num_prompt: int
    num_output: int
    block_ids: tuple[int, ...] = ()  # equal ids are equal text of MOONCAKE_BLOCK tokens; (): nothing known


def read_trace(path: str, max_requests: int | None = None) -> list[TraceRequest]:
    """The first requests of a trace, in order of time. ConfigError names the line and column at fault."""
    try:
        with Path(path).open(encoding="utf-8") as lines:
            found = list(itertools.islice(parse_trace(lines, path), max_requests))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the trace {path}: {error}") from error
    if not found:
        raise ConfigError(f"the trace {path} has no requests")
    found.sort(key=lambda request: request.at_s)
    return found


def parse_trace(lines: Iterator[str], name: str) -> Iterator[TraceRequest]:
    """Requests as they stand there; `name` is for errors."""
    first = next(lines, "").lstrip("\ufeff").strip()
    if first.startswith("{"):
        parse: Callable[[str, str], _Row] = _mooncake_row
        rows = enumerate(itertools.chain([first], lines), 1)
    elif tuple(first.split(",")) == AZURE_COLUMNS:
        parse, rows = _azure_row, enumerate(lines, 2)
    else:
        raise ConfigError(
            f"{name}, line 1: neither the columns {','.join(AZURE_COLUMNS)} nor a JSON object with "
            f"{', '.join(MOONCAKE_FIELDS)}; it begins with {first[:60]!r}"
        )
    begin_s: float | None = None
    for number, line in rows:
        if not line.strip():
            continue
        row = parse(line.strip(), f"{name}, line {number}")
        begin_s = row.at_s if begin_s is None else begin_s
        yield TraceRequest(
            at_s=row.at_s - begin_s,
            num_prompt=row.num_prompt,
            num_output=row.num_output,
            block_ids=row.block_ids,
        )


@dataclass(frozen=True, slots=True)
class _Row:
    at_s: float
    num_prompt: int
    num_output: int
    block_ids: tuple[int, ...] = ()


def _azure_row(line: str, where: str) -> _Row:
    cells = line.split(",")
    if len(cells) != len(AZURE_COLUMNS):
        raise ConfigError(f"{where}: {len(cells)} columns where {len(AZURE_COLUMNS)} are due")
    time, prompt, output = cells
    try:
        whole, _, fraction = time.partition(".")
        at_s = datetime.fromisoformat(whole).timestamp() + float(f"0.{fraction or 0}")
    except ValueError:
        raise ConfigError(f"{where}, column TIMESTAMP: {time!r} is no time") from None
    return _Row(
        at_s,
        _count(prompt, f"{where}, column ContextTokens"),
        _count(output, f"{where}, column GeneratedTokens"),
    )


def _mooncake_row(line: str, where: str) -> _Row:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: no JSON: {error}") from None
    for name in MOONCAKE_FIELDS:
        if not isinstance(fields, dict) or name not in fields:
            raise ConfigError(f"{where}: no field {name!r}")
    time, ids = fields["timestamp"], fields["hash_ids"]
    if isinstance(time, bool) or not isinstance(time, int | float) or time < 0:
        raise ConfigError(f"{where}, column timestamp: {time!r} is no number of milliseconds")
    if not isinstance(ids, list) or not all(type(entry) is int for entry in ids):
        raise ConfigError(f"{where}, column hash_ids: no list of whole numbers")
    num_prompt = _count(fields["input_length"], f"{where}, column input_length")
    if len(ids) * MOONCAKE_BLOCK < num_prompt:
        raise ConfigError(
            f"{where}, column hash_ids: {len(ids)} blocks of {MOONCAKE_BLOCK} hold no {num_prompt} tokens"
        )
    num_output = _count(fields["output_length"], f"{where}, column output_length")
    return _Row(time / 1000, num_prompt, num_output, tuple(ids))


def _count(value: object, where: str) -> int:
    text = str(value).strip()
    if isinstance(value, bool | float) or not text.isdecimal():
        raise ConfigError(f"{where}: {value!r} is no whole number")
    return int(text)

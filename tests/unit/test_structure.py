# SPDX-License-Identifier: Apache-2.0
"""docs/structure.md names the rooms that are, and what it says of imports is what the import rules hold."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "headrace"
TEXT = (ROOT / "docs" / "structure.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)/` \|.*\| ([^|]+) \|$", TEXT, re.MULTILINE))


def rooms() -> set[str]:
    return {folder.name for folder in PACKAGE.iterdir() if any(folder.glob("*.py"))}


def test_every_room_is_on_the_map_and_every_room_on_the_map_exists() -> None:
    assert set(ROWS) == rooms()


def test_every_path_on_the_map_exists() -> None:
    paths = re.findall(r"`([\w/.*]+(?:/|\.py|\.md|\.toml))`", TEXT)
    assert len(paths) > 20
    for path in paths:
        places = [ROOT, PACKAGE, ROOT / "native", *(PACKAGE / room for room in rooms())]
        assert any(any(place.glob(path.rstrip("/"))) for place in places), path


@pytest.mark.parametrize("room", sorted(ROWS))
def test_the_import_rules_say_what_the_map_says(room: str) -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    contracts = [c for c in config["contracts"] if c["source_modules"] == [f"headrace.{room}"]]
    if room == "cli":
        assert contracts == []  # may import all
        return
    (contract,) = contracts
    forbidden = {name.removeprefix("headrace.") for name in contract["forbidden_modules"]}
    if "the formats table" in ROWS[room]:
        assert contract["ignore_imports"] == [f"headrace.{room}.** -> headrace.weights.formats"]
    allowed = rooms() & set(re.findall(r"\w+", ROWS[room]))
    assert forbidden == rooms() - allowed - {room}


def test_no_room_is_empty() -> None:
    for room in rooms():
        assert any(path.stat().st_size for path in (PACKAGE / room).rglob("*.py")), room

# SPDX-License-Identifier: Apache-2.0
"""Finds the chat template of a folder in Hugging Face's layout: `chat_template.jinja`, or the field
`chat_template` of `tokenizer_config.json` or `chat_template.json`, in this order."""

from __future__ import annotations

from pathlib import Path

from headrace.core.errors import ModelFileError
from headrace.text.json_file import read_json_object

FILE = "chat_template.jinja"
TOOL_FILE = "additional_chat_templates/tool_use.jinja"
FIELD = "chat_template"


def find_template(folder: Path) -> tuple[str, str | None, str | None]:
    """Where the template is, its source, and that of the one for tools. Both may be None."""
    if (folder / FILE).is_file():
        return FILE, _read(folder / FILE), _read(folder / TOOL_FILE)
    for name in ("tokenizer_config.json", "chat_template.json"):
        field = f"{name}: {FIELD}"
        value = read_json_object(folder / name).get(FIELD)
        if isinstance(value, str):
            return field, value, None
        if isinstance(value, list):
            named = {entry["name"]: entry["template"] for entry in value if _is_named(folder, field, entry)}
            return field, named.get("default"), named.get("tool_use")
        if value is not None:
            raise ModelFileError(folder, field, f"must be a string or a list, is {type(value).__name__}")
    return FILE, None, None


def _is_named(folder: Path, field: str, entry: object) -> bool:
    if isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in ("name", "template")):
        return True
    raise ModelFileError(folder, field, "must list objects with name and template")


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(path, path.name, f"cannot be read: {error}") from error

# SPDX-License-Identifier: Apache-2.0
"""A setting has a type, a default and a sentence. Checks every dataclass in a file named config.py: each
field has a default, and a comment on its line or right above it, or a line in the class docstring's Args."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path


def is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def faults(source: str) -> list[tuple[int, str]]:
    lines = source.splitlines()
    found = []
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.ClassDef) and is_dataclass(node)):
            continue
        docstring = ast.get_docstring(node) or ""
        for field in node.body:
            if not isinstance(field, ast.AnnAssign):
                continue
            name, span = ast.unparse(field.target), lines[field.lineno - 1 : field.end_lineno]
            above = lines[field.lineno - 2].strip().startswith("#")
            told = re.search(rf"^\s*{name}:", docstring, re.MULTILINE)
            if field.value is None:
                found.append((field.lineno, f"{node.name}.{name} has no default"))
            if not (any("#" in line for line in span) or above or told):
                found.append((field.lineno, f"{node.name}.{name} has no sentence saying what it is"))
    return found


def main(root: Path) -> int:
    failed = False
    for path in sorted((root / "src").rglob("config.py")):
        for line, what in faults(path.read_text(encoding="utf-8")):
            failed = True
            print(f"{path.relative_to(root)}:{line}: {what}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()))

# SPDX-License-Identifier: Apache-2.0
"""Names that say nothing are refused for files, classes and functions: see the glossary in docs."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

BANNED = {"worker", "manager", "handler", "helper", "util"}
NAMED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def banned_word(name: str) -> str | None:
    """The first banned word in a snake_case or CamelCase name, singular or plural."""
    words = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)
    return next((w for w in words if w.lower() in BANNED or w.lower().removesuffix("s") in BANNED), None)


def main(root: Path) -> int:
    faults = 0
    for path in sorted([*(root / "src").rglob("*.py"), *(root / "native").rglob("*.[ch]*")]):
        named = [(1, path.stem)]
        if path.suffix == ".py":
            tree = ast.parse(path.read_text(encoding="utf-8"))
            named += [(node.lineno, node.name) for node in ast.walk(tree) if isinstance(node, NAMED)]
        for line, name in named:
            if word := banned_word(name):
                faults += 1
                print(f"{path.relative_to(root)}:{line}: {name!r}: {word!r} says nothing: name the idea")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()))

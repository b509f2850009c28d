# SPDX-License-Identifier: Apache-2.0
"""Only core/env.py reads the process environment. Elsewhere neither os.environ nor os.getenv is named;
native code does not call getenv."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

READER = Path("src/headrace/core/env.py")
NAMES = {"environ", "environb", "getenv", "getenvb"}


def python_reads(path: Path) -> list[int]:
    """Line numbers where `path` names the environment."""
    lines = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr in NAMES:
            lines.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            lines += [node.lineno for alias in node.names if alias.name in NAMES]
    return lines


def native_reads(path: Path) -> list[int]:
    text = path.read_text(encoding="utf-8")
    return [n for n, line in enumerate(text.splitlines(), 1) if re.search(r"\bgetenv\s*\(", line)]


def main(root: Path) -> int:
    found = []
    for path in sorted((root / "src").rglob("*.py")):
        if path != root / READER:
            found += [(path, line) for line in python_reads(path)]
    for path in sorted((root / "native").rglob("*")):
        if path.suffix in {".h", ".cpp"}:
            found += [(path, line) for line in native_reads(path)]
    for path, line in found:
        print(f"{path.relative_to(root)}:{line}: reads the environment; only {READER} may")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()))

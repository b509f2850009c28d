# SPDX-License-Identifier: Apache-2.0
"""Only the CPU kernels and the runner may name the native extension: the engine, its cache and all
text code must run, and be tested, without it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ALLOWED = ("kernels/cpu", "runner/")  # beginnings of paths under src/headrace


def native_imports(path: Path) -> list[int]:
    lines = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        if any("_native" in name.split(".") for name in names):
            lines.append(node.lineno)
    return lines


def main(root: Path) -> int:
    package = root / "src/headrace"
    found = 0
    for path in sorted(package.rglob("*.py")):
        if path.relative_to(package).as_posix().startswith(ALLOWED):
            continue
        for line in native_imports(path):
            found += 1
            print(f"{path.relative_to(root)}:{line}: imports the native extension; only {ALLOWED} may")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()))

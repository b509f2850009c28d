# SPDX-License-Identifier: Apache-2.0
"""Every source file opens with its SPDX line and, in Python, a docstring of one to six lines that says
what the file is for. Empty files are left alone."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

SPDX = "SPDX-License-Identifier: Apache-2.0"
FOLDERS = ("src", "native", "tests", "tools")
MAX_DOCSTRING_LINES = 6


def fault(path: Path) -> str | None:
    text = path.read_text(encoding="utf-8")
    if not text.strip():
        return None
    lines = text.splitlines()
    first = lines[1] if lines[0].startswith("#!") else lines[0]
    if SPDX not in first:
        return f"the first line is not `{SPDX}`"
    if path.suffix != ".py":
        return None
    docstring = ast.get_docstring(ast.parse(text))
    if docstring is None:
        return "no module docstring"
    length = len(docstring.splitlines())
    return None if length <= MAX_DOCSTRING_LINES else f"a module docstring of {length} lines; tell it shorter"


def main(root: Path) -> int:
    faults = 0
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in {".py", ".h", ".cpp"} and (what := fault(path)):
                faults += 1
                print(f"{path.relative_to(root)}: {what}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()))

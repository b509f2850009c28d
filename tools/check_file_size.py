# SPDX-License-Identifier: Apache-2.0
"""One idea a file: past 400 lines we ask what the second idea is. Python files fail; native files, where
one instruction set's kernels belong together, are only named."""

from __future__ import annotations

import sys
from pathlib import Path

MAX_LINES = 400


def main(root: Path) -> int:
    failed = False
    for folder in ("src", "tests", "tools", "native"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in {".py", ".h", ".cpp"}:
                continue
            count = len(path.read_text(encoding="utf-8").splitlines())
            if count > MAX_LINES:
                failed |= path.suffix == ".py"
                print(f"{path.relative_to(root)}: {count} lines; what is the second idea in it?")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()))

# SPDX-License-Identifier: Apache-2.0
"""Instructions of the hot kernels, counted by `valgrind --tool=callgrind`: figures that do not move with the
machine's load. For the tables whose instructions valgrind knows. See README.md beside this file."""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLAGS = [
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    f"-I{ROOT / 'native/include'}",
]  # as CMakeLists.txt has them
PORTABLE = ("benchmarks/callgrind_driver.cpp", "native/ref/kernels_ref.cpp", "native/ref/unpack.cpp")
AVX2 = ("native/x86/kernels_avx2.cpp", ["-mavx2", "-mfma", "-mf16c"])
CASES = [
    *[(kernel, tokens, "multiply-add") for kernel in ("q4", "q8") for tokens in (1, 4, 64)],
    *[("attention", tokens, "multiply-add") for tokens in (1, 16)],
    *[(kernel, 1, "number") for kernel in ("quantize", "rms_norm", "gated")],
]
EXAMPLES = """\
examples:
  python benchmarks/callgrind.py
  python benchmarks/callgrind.py --json instructions.json
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compiler", default="c++", help="default: c++")
    parser.add_argument("--json", metavar="FILE", help="also write the result there")
    args = parser.parse_args()
    for needed in ("valgrind", args.compiler):
        if shutil.which(needed) is None:
            parser.error(f"{needed} is not on PATH")
    with tempfile.TemporaryDirectory() as folder:
        driver, tables = build(Path(folder), args.compiler)
        rows = []
        print(f"{'':<12}{'tokens':>7}{'':>3}" + "".join(f"{table:>11}" for table in tables))
        for kernel, tokens, unit in CASES:
            counts = {table: instructions(driver, table, kernel, tokens) for table in tables}
            figures = "".join(f"{count:>11.4f}" for count in counts.values())
            print(f"{kernel:<12}{tokens:>7}{'':>3}{figures}   instructions a {unit}", flush=True)
            rows.append({"kernel": kernel, "tokens": tokens, "unit": unit, "instructions": counts})
    if args.json is not None:
        Path(args.json).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0


def build(folder: Path, compiler: str) -> tuple[Path, list[str]]:
    """The driver, and the tables that it has."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    objects = []
    for number, source in enumerate([*PORTABLE, *([AVX2[0]] if x86 else [])]):
        extra = AVX2[1] if source == AVX2[0] else ["-DHEADRACE_X86"] if x86 else []
        objects.append(str(folder / f"{number}.o"))
        output_of([compiler, *FLAGS, *extra, "-g", "-c", str(ROOT / source), "-o", objects[-1]])
    driver = folder / "driver"
    output_of([compiler, *objects, "-o", str(driver)])
    return driver, ["avx2", "reference"] if x86 else ["reference"]


def instructions(driver: Path, table: str, kernel: str, tokens: int) -> float:
    """Of one call, a unit of its work."""
    counts = driver.with_name("counts")
    options = ["--tool=callgrind", "--toggle-collect=measured", f"--callgrind-out-file={counts}"]
    units = int(output_of(["valgrind", "-q", *options, str(driver), table, kernel, str(tokens)]))
    found = re.search(r"(?m)^(?:totals|summary): (\d+)", counts.read_text())
    if found is None:
        sys.exit("callgrind counted nothing")
    return int(found[1]) / units


def output_of(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed with {done.returncode}:\n{done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())

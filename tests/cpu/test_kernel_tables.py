# SPDX-License-Identifier: Apache-2.0
"""Which kernel table is chosen and what is said of the others, held against the system's own list of what
the CPU has."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from headrace import _native
from headrace.cli.main import main
from headrace.core.errors import ConfigError
from headrace.kernels.cpu.tables import Choice, KernelTable, choose, kernel_tables

AVX2 = {"AVX2": "avx2", "FMA": "fma", "F16C": "f16c"}
VNNI = AVX2 | {
    "AVX512F": "avx512f",
    "AVX512BW": "avx512bw",
    "AVX512VL": "avx512vl",
    "AVX512-VNNI": "avx512_vnni",
}
# By processor: the line of /proc/cpuinfo that lists what it has, and what each table needs of it.
X86 = "flags", {"amx": VNNI | {"AMX-INT8": "amx_int8"}, "avx512vnni": VNNI, "avx2": AVX2, "reference": {}}
ARM = "Features", {"dotprod": {"DotProd": "asimddp"}, "neon": {}, "reference": {}}
PROCESSORS = {"x86_64": X86, "AMD64": X86, "aarch64": ARM}
OLD_CPU = (
    KernelTable("avx512vnni", "AVX512VL, AVX512-VNNI"),
    KernelTable("avx2", ""),
    KernelTable("reference", ""),
)


def test_tables_lack_what_the_system_says_is_not_there() -> None:
    if platform.machine() not in PROCESSORS or not Path("/proc/cpuinfo").exists():
        assert [table.lacks for table in kernel_tables()][-1] == ""
        return
    line_name, needs_of = PROCESSORS[platform.machine()]
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = set(next(line for line in lines if line.startswith(line_name)).split())
    assert {table.name: table.lacks for table in kernel_tables()} == {
        name: ", ".join(text for text, flag in needs.items() if flag not in flags)
        for name, needs in needs_of.items()
    }
    assert [table.name for table in kernel_tables() if table.runs] == _native.kernel_tables()


def test_choice() -> None:
    reason = "the fastest that this CPU runs; avx512vnni needs AVX512VL, AVX512-VNNI"
    assert choose("auto", OLD_CPU) == Choice("avx2", reason)
    assert choose("reference", OLD_CPU) == Choice("reference", "as asked")
    with pytest.raises(ConfigError, match="'avx512vnni' do not run on this CPU; these do: avx2, reference"):
        choose("avx512vnni", OLD_CPU)


def test_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.kernels.cpu.tables.kernel_tables", lambda: OLD_CPU)
    assert main(["kernels"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "avx512vnni   skipped: this machine lacks AVX512VL, AVX512-VNNI",
        "avx2         chosen: the fastest that this CPU runs",
        "reference    skipped: avx2 is faster",
    ]
    assert main(["kernels", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["chosen"], row["runs"]) for row in rows] == [
        ("avx512vnni", False, False),
        ("avx2", True, True),
        ("reference", False, True),
    ]
    assert rows[0]["reason"] == "skipped: this machine lacks AVX512VL, AVX512-VNNI"


def test_command_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows if row["chosen"]] == _native.kernel_tables()[:1]

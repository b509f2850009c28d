# SPDX-License-Identifier: Apache-2.0
"""Which cases `headrace bench kernels` times, what it makes of them, and the picture. Nothing is timed."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from headrace.bench.host import Host
from headrace.bench.kernel_cases import FULL, MODELS, QUICK, Case, ProductCase, StoredAs, cases_of
from headrace.bench.kernel_report import BytePeak, KernelReport, as_json, report_lines, time_cases
from headrace.bench.roofline import roofline

Q4, K_QUANT, F32 = StoredAs("Q4_1", 32, False), StoredAs("Q6_K", 256, False), StoredAs("F32", 1, True)
HOST = Host(cpu="A <fast> CPU", system="Linux", python="3", headrace="0")


class TenMicroseconds:
    """For every call of everything; a weight takes a byte."""

    def product(self, format_name: str, rows: int, columns: int, tokens: int) -> tuple[list[float], int]:
        return [1e-5, 1e-5, 3e-5], rows * columns

    def attention(
        self, num_heads: int, num_kv_heads: int, head_dim: int, context: int, tokens: int
    ) -> list[float]:
        return [1e-5]

    def rows(self, name: str, width: int, tokens: int) -> list[float]:
        return [1e-5]


def report_of(cases: list[Case]) -> KernelReport:
    return KernelReport(
        host=HOST,
        kernels="avx2",
        num_threads=2,
        read_bandwidth_bytes_per_s=20e9,
        byte_peak=BytePeak(chain="maddubs", ops_per_s=400e9),
        times=time_cases(cases, TenMicroseconds()),
    )


def test_cases_cover_every_kernel_and_size() -> None:
    cases = list(cases_of(list(MODELS.values()), [Q4, F32], FULL))
    assert {case.kernel for case in cases} == {"matmul", "attention", "rms_norm", "quantize", "gated"}
    products = [case for case in cases if isinstance(case, ProductCase)]
    assert {case.tokens for case in products} == {1, 4, 16, 64, 512}
    assert {(case.rows, case.columns) for case in products if case.model == "8b" and case.name == "down"} == {
        (4096, 14336)
    }
    assert {case.kind for case in products if case.name == "head"} == {"Q4_1"}
    one_token = [case for case in cases if case.kernel == "attention" and case.tokens == 1]
    assert {(case.model, case.shape) for case in one_token} == {
        (name, f"{m.num_heads}/{m.num_kv_heads} x {m.head_dim} over {context}")
        for name, m in MODELS.items()
        for context in (1024, 8192, 32768)
    }


def test_formats_that_do_not_fit_a_shape_are_left_out() -> None:
    cases = list(cases_of([MODELS["135m"]], [K_QUANT], QUICK))
    assert {case.columns for case in cases if isinstance(case, ProductCase)} == {1536}


def test_shares_of_the_limits() -> None:
    case = ProductCase("8b", "o", Q4, rows=100, columns=1000, tokens=10)
    (time,) = time_cases([case], TenMicroseconds())
    assert time.seconds.p50 == 1e-5
    assert time.num_bytes == 100 * 1000 + 10 * (1000 + 4 * 100)
    assert time.multiply_adds == 1_000_000
    values = json.loads(json.dumps(as_json(report_of([case]))))["times"]
    assert values[0]["ops_per_s"] == pytest.approx(2e6 / 1e-5)
    assert values[0]["peak_share"] == pytest.approx(0.5)
    assert values[0]["bandwidth_share"] == pytest.approx(114_000 / 1e-5 / 20e9)


def test_lines() -> None:
    report = report_of(list(cases_of([MODELS["135m"]], [Q4, F32], QUICK)))
    lines = list(report_lines(report))
    assert "int8      400.0 GOP/s at most, by maddubs" in lines
    floats = next(line for line in lines if " F32 " in line)
    assert floats.split()[-1] == "-"
    norm = next(line for line in lines if " rms_norm " in line)
    assert norm.split()[-3:] == ["-", "-", "-"]
    none = "\n".join(report_lines(replace(report, byte_peak=None)))
    assert "no peak" in none


@pytest.mark.parametrize("has_peak", [True, False])
def test_picture_is_svg(has_peak: bool) -> None:
    report = report_of(list(cases_of([MODELS["135m"]], [Q4, F32], QUICK)))
    if not has_peak:
        report = replace(report, byte_peak=None)
    root = ElementTree.fromstring(roofline(report))
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{space}svg"
    dots = [dot for dot in root.iter(f"{space}circle") if dot.find(f"{space}title") is not None]
    assert len(dots) == sum(time.multiply_adds > 0 for time in report.times)
    for dot in dots:
        assert 0 <= float(dot.attrib["cx"]) <= 900
        assert 0 <= float(dot.attrib["cy"]) <= 560
    assert len(list(root.iter(f"{space}polyline"))) == 1


def test_picture_of_nothing_has_its_roofs() -> None:
    ElementTree.fromstring(roofline(report_of([])))

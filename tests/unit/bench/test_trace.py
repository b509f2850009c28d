# SPDX-License-Identifier: Apache-2.0
"""Reading traces. The Azure lines are of the Azure Public Dataset's AzureLLMInferenceTrace_code.csv (CC BY
4.0); the Mooncake lines are of its conversation trace, FAST'25 (Apache 2.0), the second one shortened."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.bench.trace import TraceRequest, parse_trace, read_trace
from headrace.core.errors import ConfigError

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""
MOONCAKE = """\
{"timestamp": 0, "input_length": 2290, "output_length": 316, "hash_ids": [0, 42, 43, 44, 45]}
{"timestamp": 27482, "input_length": 900, "output_length": 3, "hash_ids": [0, 46]}
"""


def parsed(text: str) -> list[TraceRequest]:
    return list(parse_trace(iter(text.splitlines(keepends=True)), "t"))


def test_azure() -> None:
    first, second = parsed(AZURE)
    assert (first.at_s, first.num_prompt, first.num_output, first.block_ids) == (0.0, 4808, 10, ())
    assert second.at_s == pytest.approx(0.052, abs=1e-6)
    assert (second.num_prompt, second.num_output) == (3180, 8)


def test_azure_over_midnight() -> None:
    first, second = parsed(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 23:59:59.5,1,1\n2023-11-17 00:00:01,1,1"
    )
    assert second.at_s - first.at_s == pytest.approx(1.5)


def test_mooncake() -> None:
    first, second = parsed(MOONCAKE)
    assert first == TraceRequest(at_s=0.0, num_prompt=2290, num_output=316, block_ids=(0, 42, 43, 44, 45))
    assert second == TraceRequest(at_s=27.482, num_prompt=900, num_output=3, block_ids=(0, 46))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: neither"),
        ("a,b,c\n1,2,3\n", "line 1: neither .* begins with 'a,b,c'"),
        (AZURE + "2023-11-16 18:17:05,12\n", "line 4: 2 columns where 3"),
        (AZURE + "yesterday,12,1\n", "line 4, column TIMESTAMP: 'yesterday'"),
        (AZURE + "2023-11-16 18:17:05,x,1\n", "line 4, column ContextTokens: 'x'"),
        (AZURE + "\n2023-11-16 18:17:05,5,-1\n", "line 5, column GeneratedTokens: '-1'"),
        (MOONCAKE + "{oops\n", "line 3: no JSON"),
        (MOONCAKE + '{"timestamp": 1}\n', "line 3: no field 'input_length'"),
        (MOONCAKE.replace("27482", '"soon"'), "line 2, column timestamp: 'soon'"),
        (MOONCAKE.replace("900", "9.5"), "line 2, column input_length: 9.5"),
        (MOONCAKE.replace("900", "1025"), "line 2, column hash_ids: 2 blocks of 512"),
        (MOONCAKE.replace("[0, 46]", '[0, "46"]'), "line 2, column hash_ids: no list"),
    ],
)
def test_faults_have_their_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parsed(text)


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE)
    assert len(read_trace(str(path))) == 2
    assert len(read_trace(str(path), max_requests=1)) == 1
    with pytest.raises(ConfigError, match="cannot read the trace"):
        read_trace(str(tmp_path / "none.csv"))
    path.write_text(AZURE.splitlines()[0])
    with pytest.raises(ConfigError, match="has no requests"):
        read_trace(str(path))
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot read the trace"):
        read_trace(str(path))

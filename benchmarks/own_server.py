# SPDX-License-Identifier: Apache-2.0
"""A `headrace serve` of one's own for the time of a measurement, and what its process holds in memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from headrace.bench.http_exchange import HttpClient

TIMEOUT_S = 600.0
MIB = 2**20


class OwnServer:
    """Runs until the block ends."""

    def __init__(self, model: str, options: list[str]) -> None:
        command = [sys.executable, "-m", "headrace", "serve", model, "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = re.search(r"http://[\d.]+:\d+", self.process.stdout.readline())
        if found is None:
            raise SystemExit(f"the server did not start: {' '.join(command)}")
        self.url = found[0]

    def __enter__(self) -> OwnServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        self.process.terminate()
        self.process.wait(60)

    def client(self) -> HttpClient:
        return HttpClient(self.url, {}, TIMEOUT_S)

    def held_mib(self) -> float:
        """Resident, without pages of mapped files: those are the system's to take back."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(_number(r"RssAnon:\s+(\d+)", status)) / 1024

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def metrics(client: HttpClient) -> dict[str, float]:
    """Our own names on the metrics page, those without further labels."""
    page = (await client.get("/metrics")).body.decode()
    found = re.findall(r'(?m)^headrace:(\w+)\{model_name="[^"]*"\} (\S+)$', page)
    return {name: float(value) for name, value in found}


def _number(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found is not None, pattern
    return found[1]

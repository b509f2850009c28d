# SPDX-License-Identifier: Apache-2.0
"""Packed weights outlive the program that packed them, so their bytes must not change while PACKED_LAYOUT
stays as it is. If this fails because packing was changed on purpose: add one to kPackedLayout in
native/include/pack.h and put the digests of the failure here."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from random_models import HALF_SCALES

from headrace import _native
from headrace.weights.formats import FORMATS, QuantFormat

LAYOUT = 1
ROWS, COLUMNS = 13, 512
DIGESTS = {
    "F32": "d2a80e648dddf26c",
    "F16": "7202ccac93df0e56",
    "BF16": "6cab008c9c5d1d62",
    "Q4_0": "5f94658f16cbb424",
    "Q4_1": "01bc43d5cbeadbc2",
    "Q5_0": "9c96fe862af9e8ba",
    "Q5_1": "aa06b8b3e78debc0",
    "Q8_0": "6132bd03e771ed64",
    "Q2_K": "c9eb4b08bfffa5ef",
    "Q3_K": "4c49c5754c3d31cb",
    "Q4_K": "eea359b8e33b825b",
    "Q5_K": "414de9fc89fe60ec",
    "Q6_K": "02cd18898225a0d0",
    "IQ4_NL": "862e7fa86636116a",
    "IQ4_XS": "781322dea8bbcee0",
    "MXFP4": "18c755338babee05",
}


def fixed_bytes(row: QuantFormat) -> np.ndarray:
    """The same on every machine and with every numpy; scales are below 2 and no NaN."""
    num_bytes = row.num_bytes(ROWS * COLUMNS)
    stream = hashlib.shake_128(row.name.encode()).digest(num_bytes)
    data = np.frombuffer(stream, dtype=np.uint8).copy()
    qblocks = data.reshape(-1, row.qblock_bytes)
    for place in HALF_SCALES.get(row.name, ()):
        qblocks[:, place + 1] &= 0xBF
    if row.name == "MXFP4":
        qblocks[:, 0] = 118 + qblocks[:, 0] % 6
    return data


def digest(row: QuantFormat) -> str:
    packed = _native.pack(row.gguf_id, fixed_bytes(row), ROWS, COLUMNS, _native.Team(2))
    told = f"{packed.kind} {packed.multiplier!r} {packed.num_bytes};".encode()
    return hashlib.blake2b(told + packed.data.tobytes(), digest_size=8).hexdigest()


def test_the_layout_these_digests_are_of() -> None:
    assert _native.PACKED_LAYOUT == LAYOUT


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.name)
def test_packed_bytes(row: QuantFormat) -> None:
    assert digest(row) == DIGESTS[row.name]

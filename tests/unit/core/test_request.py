# SPDX-License-Identifier: Apache-2.0
"""What `SamplingParams` takes and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.errors import RequestError
from headrace.core.request import SamplingParams


@pytest.mark.parametrize("seed", [None, 0, -(2**63), 2**64 - 1])
def test_seeds_of_64_bits(seed: int | None) -> None:
    assert SamplingParams(seed=seed).seed == seed


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1, 1.0, "1", True])
def test_other_seeds_are_refused(seed: Any) -> None:
    with pytest.raises(RequestError, match="seed must be an integer from") as error:
        SamplingParams(seed=seed)
    assert error.value.param == "seed"

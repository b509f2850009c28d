# SPDX-License-Identifier: Apache-2.0
"""How fast this machine reads memory: the roof over decoding, which reads every weight for each token."""

from __future__ import annotations

from headrace._native import read_bandwidth as native_read_bandwidth


def read_bandwidth(num_threads: int, num_bytes: int, seconds: float) -> float:
    """Bytes a second that `num_threads` read together from `num_bytes` of memory, the best of the passes
    that `seconds` allow. Let `num_bytes` be more than the caches hold."""
    return float(native_read_bandwidth(num_threads, num_bytes, seconds))

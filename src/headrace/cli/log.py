# SPDX-License-Identifier: Apache-2.0
"""What commands show of the log: resolved settings with their reasons, on stderr."""

from __future__ import annotations

import logging


def log_to_stderr() -> None:
    """Show Headrace's own messages from INFO up; other libraries' as before."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("headrace: %(message)s"))
    log = logging.getLogger("headrace")
    log.addHandler(handler)
    log.setLevel(logging.INFO)

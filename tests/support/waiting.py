"""Waiting for what comes sooner or later."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(so: Callable[[], object], timeout_s: float = 30.0) -> bool:
    """Return whether it came to be so in time."""
    deadline_s = time.monotonic() + timeout_s
    while not so():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True

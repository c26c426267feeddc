"""Wait until something is so."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable


def wait_until(so: Callable[[], object], timeout_s: float = 30.0) -> bool:
    """Return whether it became so in time."""
    deadline_s = time.monotonic() + timeout_s
    while not so():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


def readable(descriptor: int, timeout_s: float) -> bool:
    """Return whether there is something to read in time.

    `select.select` takes no descriptor from 1024 on, and many tests in one process open as many.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(timeout_s))

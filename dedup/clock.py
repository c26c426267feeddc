"""The machine's clock. `dedup.core` has none: it is told the time."""

from __future__ import annotations

import time


def wall_clock_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000

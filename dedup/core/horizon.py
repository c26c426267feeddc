"""The central rule: how far apart in time two records with one ID may be and still be duplicates.

The kernel applies the same rule to the records of one micro-batch (`dedup.kernel.scan_verdicts`).
"""

from __future__ import annotations

import numpy as np

from dedup.core.arrays import BOOL, I64


def within_horizon(times_ms: I64, first_ms: I64, last_ms: I64, horizon_ms: int) -> BOOL:
    """Return whether each time is within the horizon of its range, ends included, shape (n,)."""
    near: BOOL = np.maximum(first_ms - times_ms, times_ms - last_ms) <= horizon_ms
    return near

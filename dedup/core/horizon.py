"""The central rule: records with the same ID are duplicates if they are at most a horizon apart.

The kernel applies the same rule to the records of one micro-batch (`dedup.kernel.scan_verdicts`).
"""

from __future__ import annotations

import numpy as np

from dedup.kernel.arrays import BOOL, I64


def within_horizon(times_ms: I64, first_ms: I64, last_ms: I64, horizon_ms: int) -> BOOL:
    """Return for each time whether it is within the horizon of its range.

    A time matches if it is in ``[first_ms, last_ms]``, or at most ``horizon_ms`` before or after.
    """
    near: BOOL = np.maximum(first_ms - times_ms, times_ms - last_ms) <= horizon_ms
    return near

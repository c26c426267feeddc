"""The central rule: how far apart two records with the same ID may be and still be copies.

The kernel has the same rule for records of one micro-batch (`dedup.kernel.scan_verdicts`).
"""

from __future__ import annotations

import numpy as np

from dedup.core.arrays import BOOL, I64


def within_horizon(times_ms: I64, others_ms: I64, horizon_ms: int) -> BOOL:
    """Return whether times lie within the horizon of others, which is inclusive, shape (n,)."""
    near: BOOL = np.abs(times_ms - others_ms) <= horizon_ms
    return near

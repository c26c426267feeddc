"""The content hash of a slice (the rows that one task has of one micro-batch).

The content hash consists of two sums over the 64-bit hashes of the rows. When Spark runs a
micro-batch again, it may change the order of the rows. Sums do not depend on the order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dedup.spark.executor.rowhash import hash_rows

#: Key of the row hash. Never change this key, because the hashes in old markers depend on it.
_KEY = b"dedup-sink-rows\x01"
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Content:
    """The number of rows of a slice, and two sums, modulo 2^64, over the hashes of the rows."""

    rows: int = 0
    low: int = 0
    high: int = 0

    def __add__(self, other: Content) -> Content:
        return Content(
            self.rows + other.rows, (self.low + other.low) & _MASK, (self.high + other.high) & _MASK
        )

    @property
    def hash(self) -> str:
        """Both sums as 32 hexadecimal digits."""
        return f"{self.high:016x}{self.low:016x}"


def content_of(rows: pa.RecordBatch) -> Content:
    """Return the content of some rows. It depends on the order of the columns, not on names."""
    hashes = hash_rows(pa.Table.from_batches([rows]), _KEY)
    with np.errstate(over="ignore"):
        mixed = (hashes ^ (hashes >> np.uint64(29))) * _ODD
        mixed ^= mixed >> np.uint64(32)
        return Content(
            len(hashes), int(hashes.sum(dtype=np.uint64)), int(mixed.sum(dtype=np.uint64))
        )

"""The content hash of a slice: two sums over the 64-bit hashes of its rows.

Sums do not depend on the order of the rows, which Spark may change when it runs a micro-batch
again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dedup.spark.executor.rowhash import hash_rows

#: Never change this: later releases compare their hashes with those in old markers.
_KEY = b"dedup-sink-rows\x01"
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Content:
    """Number of rows, and two sums, modulo 2^64, of functions of each row's 64-bit hash."""

    rows: int = 0
    low: int = 0
    high: int = 0

    def __add__(self, other: Content) -> Content:
        return Content(
            self.rows + other.rows, (self.low + other.low) & _MASK, (self.high + other.high) & _MASK
        )

    @property
    def hash(self) -> str:
        """The sums as 32 hexadecimal digits."""
        return f"{self.high:016x}{self.low:016x}"


def content_of(rows: pa.RecordBatch) -> Content:
    """Return the content of some rows. It depends on the order of columns, not on their names."""
    hashes = hash_rows(pa.Table.from_batches([rows]), _KEY)
    with np.errstate(over="ignore"):
        mixed = (hashes ^ (hashes >> np.uint64(29))) * _ODD
        mixed ^= mixed >> np.uint64(32)
        return Content(
            len(hashes), int(hashes.sum(dtype=np.uint64)), int(mixed.sum(dtype=np.uint64))
        )

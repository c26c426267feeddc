"""What a slice holds, whatever the order of its rows: two sums over 64-bit hashes of the rows.

Spark may hand the same rows to a task in another order when it runs a micro-batch again, so the
hash of a slice is a sum over the hashes of its rows: equal multisets have equal sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dedup.spark.executor.rowhash import hash_rows

#: Fixed for ever: hashes in the log of a sink are compared with those of later releases.
_KEY = b"dedup-sink-rows\x01"
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Content:
    """Number of rows and the order-independent hash of them.

    Parameters
    ----------
    rows : int
    low, high : int
        Sums, modulo 2^64, of two functions of each row's 64-bit hash.
    """

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
    """Return the content of some rows; columns count in their order, their names do not."""
    hashes = hash_rows(pa.Table.from_batches([rows]), _KEY)
    with np.errstate(over="ignore"):
        mixed = (hashes ^ (hashes >> np.uint64(29))) * _ODD
        mixed ^= mixed >> np.uint64(32)
        return Content(
            len(hashes), int(hashes.sum(dtype=np.uint64)), int(mixed.sum(dtype=np.uint64))
        )

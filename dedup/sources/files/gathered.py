"""Record batches that go on together once they are enough."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa


@dataclass(slots=True)
class Gathered:
    """Batches up to about so many rows or bytes.

    Parameters
    ----------
    max_rows, max_bytes : int
        One more batch may lie beyond.
    """

    max_rows: int
    max_bytes: int
    _batches: list[pa.RecordBatch] = field(default_factory=list)
    _rows: int = 0
    _nbytes: int = 0

    def add(self, batch: pa.RecordBatch) -> bool:
        """Take in a batch; return whether it is time to `take` them."""
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._nbytes += batch.nbytes
        return self._rows >= self.max_rows or self._nbytes >= self.max_bytes

    def take(self) -> list[pa.RecordBatch]:
        """Return the batches, and begin anew."""
        taken, self._batches = self._batches, []
        self._rows = self._nbytes = 0
        return taken

"""Seeded events for the benchmarks: UUID text IDs, a known share of duplicates, three row shapes.

======== ======= ================================================================================
shape    columns content
======== ======= ================================================================================
narrow   5       ID, time, two numbers, a country code
kafka    6       a record of Kafka: ID as key, value of 650 bytes, topic, partition, offset, time
wide     26      the narrow ones, a counter, and 20 texts of 32 characters each
======== ======= ================================================================================

Values and texts are random, so that no compression makes them smaller than they would be to carry.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dedup.sinks.files.text_lines import Dialect, csv_head, csv_lines, json_lines

_NARROW = "event_id string, ts timestamp, user_id long, amount double, country string"
TEXTS = 20
TEXT_CHARACTERS = 32
VALUE_BYTES = 650
#: Spark's columns of each shape.
SCHEMAS = {
    "narrow": _NARROW,
    "kafka": (
        "event_id string, value binary, topic string, partition int, offset long, ts timestamp"
    ),
    "wide": f"{_NARROW}, number long, "
    + ", ".join(f"text_{number:02d} string" for number in range(TEXTS)),
}
_START_MS = 1_767_225_600_000  # 2026-01-01
_COUNTRIES = np.array(["DE", "FR", "GB", "IN", "JP", "NG", "US", "BR"])
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_TEXT_POSITIONS = np.array([i for i in range(36) if i not in (8, 13, 18, 23)])


@dataclass(frozen=True)
class Events:
    """A stream of micro-batches.

    Parameters
    ----------
    rows : int
        Records per micro-batch.
    duplicates : float
        Share of records that repeat an earlier record of the stream, in [0, 1).
    seed : int
    hot : float
        Share of records that carry one and the same ID, in [0, 1).
    batch_ms : int
        Event time that a micro-batch spans.
    shape : {"narrow", "kafka", "wide"}
        Of the rows; the same records in each.
    """

    rows: int = 1_000_000
    duplicates: float = 0.05
    seed: int = 7
    batch_ms: int = 600_000
    hot: float = 0.0
    shape: str = "narrow"

    @property
    def schema(self) -> str:
        """The columns, as Spark's DDL."""
        return SCHEMAS[self.shape]

    def _new(self) -> int:
        return round(self.rows * (1 - self.duplicates))

    def unique(self, batches: int) -> int:
        """How many IDs are in the first micro-batches."""
        return self._new() * batches

    def batch(self, number: int) -> pa.Table:
        """One micro-batch, the same for every call: new records, then repeats, shuffled."""
        rng = np.random.default_rng([self.seed, number])
        new = self._new()
        first = number * new
        index = np.arange(first, first + new)
        repeated = rng.integers(0, first + new, self.rows - new)
        index = rng.permutation(np.concatenate([index, repeated]))
        if self.hot:
            # The oldest of this micro-batch, so that its time is the micro-batch's.
            index[rng.random(len(index)) < self.hot] = first
        return self._records(index)

    def _records(self, index: npt.NDArray[np.int64]) -> pa.Table:
        """The records of these numbers; every column follows from the number."""
        mixed = _mix(index, self.seed)
        high, low = _mix(mixed, 1), _mix(mixed, 2)
        per_batch = self.batch_ms / self._new()
        times_ms = _START_MS + (index * per_batch).astype(np.int64)
        times = pa.array(times_ms * 1000).cast(pa.timestamp("us", "UTC"))
        if self.shape == "kafka":
            return pa.table(
                {
                    "event_id": uuid_text(high, low),
                    "value": _texts(mixed, VALUE_BYTES).view(pa.binary()),
                    "topic": pa.repeat("orders", len(index)).cast(pa.string()),
                    "partition": (mixed % np.uint64(12)).astype(np.int32),
                    "offset": index,
                    "ts": times,
                }
            )
        columns: dict[str, Any] = {
            "event_id": uuid_text(high, low),
            "ts": times,
            "user_id": (mixed % np.uint64(1_000_000)).astype(np.int64),
            "amount": (low % np.uint64(100_000)).astype(np.float64) / 100,
            "country": _COUNTRIES[(high % np.uint64(len(_COUNTRIES))).astype(np.int64)],
        }
        if self.shape == "wide":
            columns["number"] = index
            for number in range(TEXTS):
                columns[f"text_{number:02d}"] = _texts(_mix(mixed, number), TEXT_CHARACTERS)
        return pa.table(columns)

    def write(
        self, folder: Path, number: int, files: int = 2, file_format: str = "parquet"
    ) -> list[Path]:
        """A micro-batch as files of Parquet, CSV or JSON, made once."""
        paths = [folder / f"b{number:04d}-{part}-of-{files}.{file_format}" for part in range(files)]
        if not all(path.exists() for path in paths):
            folder.mkdir(parents=True, exist_ok=True)
            table = self.batch(number)
            share = -(-self.rows // files)
            for part, path in enumerate(paths):
                _write(table.slice(part * share, share), path.with_suffix(".tmp"), file_format)
                path.with_suffix(".tmp").rename(path)
        return paths


def _write(rows: pa.Table, path: Path, file_format: str) -> None:
    if file_format == "parquet":
        pq.write_table(rows, path)
        return
    (batch,) = rows.combine_chunks().to_batches()
    dialect = Dialect(header=True)
    lines = csv_lines if file_format == "csv" else json_lines
    head = csv_head(rows.schema, dialect) if file_format == "csv" else b""
    path.write_bytes(head + lines(batch, dialect))


def _mix(values: npt.NDArray[np.generic], salt: int) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014): distinct stays distinct."""
    with np.errstate(over="ignore"):
        x = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15 * (salt + 1) % 2**64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def _texts(seeds: npt.NDArray[np.uint64], length: int) -> pa.Array:
    """Texts of that many hexadecimal characters, each following from its seed."""
    count, words = len(seeds), -(-length // 16)
    raw = np.stack([_mix(seeds, 100 + word) for word in range(words)], axis=1).view(np.uint8)
    text = np.empty((count, words * 16), np.uint8)
    text[:, 0::2] = _HEX[raw >> 4]
    text[:, 1::2] = _HEX[raw & 15]
    offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * length)
    characters = np.ascontiguousarray(text[:, :length])
    return pa.StringArray.from_buffers(count, offsets, pa.py_buffer(characters.reshape(-1)))


def uuid_text(high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64]) -> pa.Array:
    """Canonical UUID text of 128-bit numbers, string array of length n."""
    count = len(high)
    raw = np.stack([high.astype(">u8"), low.astype(">u8")], axis=1).view(np.uint8)
    digits = np.empty((count, 32), np.uint8)
    digits[:, 0::2] = _HEX[raw >> 4]
    digits[:, 1::2] = _HEX[raw & 15]
    text = np.full((count, 36), ord("-"), np.uint8)
    text[:, _TEXT_POSITIONS] = digits
    offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * 36)
    return pa.StringArray.from_buffers(count, offsets, pa.py_buffer(text.reshape(-1)))

"""A made-up stream of events, some of which are delivered twice, and its expected figures."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

HOUR_MS = 3_600_000
#: Length of the event time that the stream covers.
SPAN_MS = 48 * HOUR_MS
HORIZON_MS = 12 * HOUR_MS
LATENESS_MS = HOUR_MS
FILES = 40
FILES_PER_TRIGGER = 2

#: 2024-05-01T00:00:00Z
START_MS = 1_714_521_600_000
_COPIES = 0.05
_REUSED = 0.002
_LATE = 0.001
_NULL = 0.0005
#: Delay of the delivery that is long enough to make a new ID late in any file.
_STRAGGLE_MS = 8 * HOUR_MS
_JITTER_MS = 10 * 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """Expected figures: the number of records with each verdict, and the newest timestamp."""

    unique: int
    duplicate: int
    late: int
    null_id: int
    newest_ms: int

    @property
    def records_in(self) -> int:
        return self.unique + self.duplicate + self.late + self.null_id

    @property
    def emitted(self) -> int:
        return self.records_in - self.duplicate

    @property
    def gc_watermark_ms(self) -> int:
        return self.newest_ms - LATENESS_MS - HORIZON_MS


class Stream(NamedTuple):
    """Records in the order of delivery. The time of delivery decides which file holds a record."""

    records: pa.Table
    delivered_ms: np.ndarray


def make_stream(events: int, seed: int) -> tuple[Stream, Truth]:
    """Return a stream of `events` distinct events, at least 10,000, and its expected figures.

    The stream also holds four other kinds of records. Duplicates repeat the event time, and come up
    to 11 hours later. IDs that are used again 14 hours or more later are unique, because the
    horizon is 12 hours. New IDs that come 8 hours behind are late. Some records have no ID.
    """
    rng = np.random.default_rng(seed)
    copies, reused = int(events * _COPIES), int(events * _REUSED)
    late, null = int(events * _LATE), int(events * _NULL)
    raw = rng.bytes(16 * (events + late))
    names = [str(UUID(bytes=raw[at : at + 16], version=4)) for at in range(0, len(raw), 16)]

    times = np.sort(rng.integers(0, SPAN_MS, events))
    # No event comes after the end, so that the newest timestamp is among the last deliveries.
    delivered = np.minimum(times + rng.integers(0, _JITTER_MS, events), SPAN_MS - 1)

    copied = rng.choice(np.flatnonzero(delivered < SPAN_MS - 11 * HOUR_MS), copies, replace=False)
    soon = rng.random(copies) < 0.7
    delay = np.where(
        soon, rng.integers(1_000, HOUR_MS, copies), rng.integers(HOUR_MS, 11 * HOUR_MS, copies)
    )
    again = rng.choice(np.flatnonzero(times < SPAN_MS - 20 * HOUR_MS), reused, replace=False)
    # Exclude copied IDs, because the query may remember a copy under a later time than its own.
    again = np.setdiff1d(again, copied)
    again_at = times[again] + rng.integers(14 * HOUR_MS, 20 * HOUR_MS, len(again))
    late_at = rng.integers(_STRAGGLE_MS + 2 * HOUR_MS, SPAN_MS, late)
    null_at = rng.integers(0, SPAN_MS, null)

    repeats = [names[i] for i in (*copied, *again)]
    ids = [*names[:events], *repeats, *names[events:], *[None] * null]
    all_times = np.concatenate([times, times[copied], again_at, late_at - _STRAGGLE_MS, null_at])
    all_delivered = np.concatenate(
        [delivered, delivered[copied] + delay, again_at, late_at, null_at]
    )
    records = pa.table(
        {
            "event_id": pa.array(ids, pa.string()),
            "event_time": pa.array(START_MS + all_times, pa.timestamp("ms", "UTC")),
            "user_id": rng.integers(0, 50_000, len(ids)),
            "kind": pa.array(rng.choice(["view", "cart", "order"], len(ids))),
            "amount_cents": rng.integers(1, 100_000, len(ids)),
        }
    )
    order = np.argsort(all_delivered, kind="stable")
    stream = Stream(records.take(order), all_delivered[order])
    truth = Truth(
        unique=events + len(again),
        duplicate=copies,
        late=late,
        null_id=null,
        newest_ms=int(START_MS + all_times.max()),
    )
    return stream, truth


def write_files(stream: Stream, folder: Path) -> None:
    """Write the stream as Parquet files. Their modification times follow the order of delivery."""
    folder.mkdir(parents=True)
    edges = np.searchsorted(stream.delivered_ms, np.arange(1, FILES) * (SPAN_MS // FILES))
    bounds = [0, *edges.tolist(), len(stream.delivered_ms)]
    for number, (begin, end) in enumerate(pairwise(bounds)):
        path = folder / f"events-{number:03d}.parquet"
        _write(stream.records.slice(begin, end - begin), path, number)


def write_redelivery(stream: Stream, folder: Path, seed: int, count: int) -> int:
    """Write a file that delivers some recent events again, and return the number of records."""
    times_ms = stream.records["event_time"].cast(pa.int64()).to_numpy()
    recent = times_ms > times_ms.max() - HORIZON_MS // 2
    live = np.flatnonzero(recent & stream.records["event_id"].is_valid().to_numpy())
    rng = np.random.default_rng(seed + 1)
    chosen = np.sort(rng.choice(live, min(count, len(live)), replace=False))
    _write(stream.records.take(chosen), folder / "redelivered.parquet", FILES)
    return len(chosen)


def _write(records: pa.Table, path: Path, number: int) -> None:
    pq.write_table(records, path)
    mtime_s = START_MS // 1000 + number
    os.utime(path, (mtime_s, mtime_s))

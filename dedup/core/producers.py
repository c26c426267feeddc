"""The table of a shard's producers, and how the state row stores it as bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dedup.core.clocks import NEVER_MS
from dedup.core.keys import Keys
from dedup.core.sequence import MOST_RANGES, ProducerMemory
from dedup.core.state_row import columns_from
from dedup.kernel.arrays import BOOL, I64, U8, offsets_of

_HEADER = struct.Struct("<QQQ")
#: Bound of positions and times, as in `dedup.values.parse`.
_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class Producers:
    """The n producers that a shard remembers, in the order in which they first appeared."""

    #: Name and partition of each producer, encoded as bytes.
    keys: Keys
    #: Epoch of each producer, as in `ProducerMemory`. `floors` is as there too.
    epochs: I64
    #: Newest effective timestamp of each producer's records, or its newest query time if records
    #: carry no timestamps.
    heard_ms: I64
    floors: I64
    #: Number of ranges of each producer, 1 to `MOST_RANGES`, or 0 in a row that `grown` added.
    counts: U8
    #: First position of each range, lowest first, shape (n, width). Unused columns are 0. `lasts`
    #: holds the last positions.
    firsts: I64
    lasts: I64

    @staticmethod
    def empty() -> Producers:
        none, ranges = np.zeros(0, np.int64), np.zeros((0, 1), np.int64)
        return Producers(Keys.empty(), none, none, none, np.zeros(0, np.uint8), ranges, ranges)

    def __len__(self) -> int:
        return len(self.epochs)

    @property
    def _columns(self) -> tuple[Any, ...]:
        return self.epochs, self.heard_ms, self.floors, self.counts, self.firsts, self.lasts

    def memory(self, row: int) -> ProducerMemory | None:
        """Return what is remembered of one producer, or None if it has no ranges yet."""
        count = int(self.counts[row])
        if not count:
            return None
        firsts, lasts = self.firsts[row, :count].tolist(), self.lasts[row, :count].tolist()
        ranges = tuple(zip(firsts, lasts, strict=True))
        return ProducerMemory(int(self.epochs[row]), int(self.floors[row]), ranges)

    def grown(self, keys: Keys) -> Producers:
        """Return a mutable copy with an empty row for every new producer.

        ``keys`` begins with the keys of the present producers. The other keys are new.
        """
        new = len(keys) - len(self)
        grown = Producers(
            keys,
            *(
                np.concatenate([column, np.zeros((new, *column.shape[1:]), column.dtype)])
                for column in self._columns
            ),
        )
        grown.heard_ms[len(self) :] = NEVER_MS
        return grown

    def wide_enough(self, count: int) -> Producers:
        """Return the table with room for at least ``count`` ranges in every row."""
        if count <= self.firsts.shape[1]:
            return self
        room = ((0, 0), (0, min(2 * count, MOST_RANGES) - self.firsts.shape[1]))
        return replace(self, firsts=np.pad(self.firsts, room), lasts=np.pad(self.lasts, room))

    def remember(self, row: int, memory: ProducerMemory) -> Producers:
        """Set a row of this table, which `grown` must have made.

        Returns the same table, or a wider copy if the row has too many ranges.
        """
        count = len(memory.ranges)
        table = self.wide_enough(count)
        table.epochs[row], table.floors[row], table.counts[row] = memory.epoch, memory.floor, count
        table.firsts[row] = table.lasts[row] = 0
        table.firsts[row, :count], table.lasts[row, :count] = zip(*memory.ranges, strict=True)
        return table

    def where(self, mask: BOOL) -> Producers:
        if bool(mask.all()):
            return self
        return Producers(
            self.keys.take(np.flatnonzero(mask)), *(column[mask] for column in self._columns)
        )

    def to_bytes(self) -> bytes:
        used = np.arange(self.firsts.shape[1]) < self.counts[:, None]
        return b"".join(
            (
                _HEADER.pack(len(self), int(self.counts.sum()), len(self.keys.data)),
                self.keys.lengths.astype("<u4").tobytes(),
                self.epochs.astype("<i8").tobytes(),
                self.heard_ms.astype("<i8").tobytes(),
                self.floors.astype("<i8").tobytes(),
                self.counts.tobytes(),
                self.firsts[used].astype("<i8").tobytes(),
                self.lasts[used].astype("<i8").tobytes(),
                self.keys.data.tobytes(),
            )
        )

    @staticmethod
    def from_bytes(data: memoryview) -> Producers:
        """Return the producers, or raise ValueError if the bytes are inconsistent."""
        if len(data) < _HEADER.size:
            raise ValueError("the table of producers is shorter than its header")
        count, ranges, key_bytes = _HEADER.unpack_from(data)
        layout = (
            ("<u4", count), ("<i8", count), ("<i8", count), ("<i8", count), ("u1", count),
            ("<i8", ranges), ("<i8", ranges), ("u1", key_bytes),
        )  # fmt: skip
        columns = columns_from(data, _HEADER.size, layout)
        lengths, epochs, heard_ms, floors, counts, firsts, lasts, keys = columns
        offsets = offsets_of(lengths)
        if int(offsets[-1]) != key_bytes or int(counts.sum()) != ranges:
            raise ValueError("lengths of keys, or numbers of ranges, do not add up")
        if count and not counts.min():
            raise ValueError("a producer has no range")
        used = np.arange(max(1, int(counts.max(initial=0)))) < counts[:, None]
        tables = []
        for values in (firsts, lasts):
            table = np.zeros(used.shape, np.int64)
            table[used] = values
            tables.append(table)
        _check_values(counts, epochs, heard_ms, floors, *tables)
        _check_order(used, *tables)
        return Producers(
            Keys(keys, offsets),
            epochs.astype(np.int64),
            heard_ms.astype(np.int64),
            floors.astype(np.int64),
            counts.copy(),
            *tables,
        )


def _check_values(
    counts: U8, epochs: I64, heard_ms: I64, floors: I64, firsts: I64, lasts: I64
) -> None:
    """Raise ValueError for numbers that no release writes and whose sums would overflow 64 bits."""
    if min(firsts.min(initial=0), lasts.min(initial=0)) < 0 or lasts.max(initial=0) >= _LIMIT:
        raise ValueError("a position is below 0 or too large")
    newest = lasts[np.arange(len(counts)), counts.astype(np.int64) - 1]
    if bool(((floors < 0) | (floors > newest)).any()):
        raise ValueError("a floor is below 0 or above the newest position")
    if epochs.min(initial=0) < 0:
        raise ValueError("an epoch is below 0")
    if bool(((heard_ms < -_LIMIT) | (heard_ms > _LIMIT)).any()):
        raise ValueError("a time is too large")


def _check_order(used: BOOL, firsts: I64, lasts: I64) -> None:
    if bool((firsts > lasts)[used].any()):
        raise ValueError("a range of sequences ends before it begins")
    if bool((firsts[:, 1:] <= lasts[:, :-1] + 1)[used[:, 1:]].any()):
        raise ValueError("ranges of sequences overlap or are out of order")

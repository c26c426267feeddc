"""Judge the records of one micro-batch one by one, in arrival order.

A record is **taken** if it is emitted and its ID is remembered. A remembered ID with its time is an
**entry**. An ID is **settled** if its entries make all of its records in the micro-batch
duplicates.

The content of records defines their arrival order within a micro-batch: effective timestamp, then
the user's order columns, then a keyed hash of the row (invariant 6). The order matters only for IDs
that occur more than once in the micro-batch. Only the records of these IDs are sorted, and only
records with equal timestamps need the other criteria. A record is dropped only if the same ID was
emitted within the horizon, or if a policy that the user chose drops it (invariant 8).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import numpy as np

from dedup import kernel
from dedup.core.horizon import within_horizon
from dedup.core.lookup import Matches
from dedup.core.payload import pairs_in_groups
from dedup.kernel.arrays import BOOL, I64, U8


class Verdict(IntEnum):
    """The outcome of a record."""

    UNIQUE = 0
    DUPLICATE = 1
    LATE = 2
    NULL_ID = 3
    #: The record has an ID, but no timestamp to judge it by.
    UNTIMED = 4
    #: The record is a duplicate, but its payload differs from the emitted record's payload.
    CONFLICT = 5


def judge(
    first: I64,
    times_ms: I64,
    matches: Matches,
    droppable: BOOL,
    horizon_ms: int,
    tie_rank: Callable[[I64], I64],
) -> U8:
    """Return the verdict of each of n records: 0 taken, 1 duplicate or 2 dropped as late.

    A record is a duplicate if the horizon around its time contains an entry of its ID, or an
    earlier record of this micro-batch with its ID that was taken. ``first`` holds for each record
    the index of the first record with the same ID. ``matches`` numbers IDs in the order of their
    first records. ``droppable`` marks the late records that the policy drops if they are not
    duplicates. ``tie_rank`` ranks records, and is called only for records with equal ID and time.
    """
    n = len(first)
    is_first = first == np.arange(n)
    first_records = np.flatnonzero(is_first)
    verdicts = np.zeros(n, np.uint8)
    verdicts[droppable] = Verdict.LATE

    settled = np.zeros(n, np.bool_)
    settled[first_records[matches.settled]] = True
    verdicts[settled[first]] = Verdict.DUPLICATE
    if len(first_records) == n:
        return verdicts

    repeated = np.zeros(n, np.bool_)
    repeated[first[~is_first]] = True
    repeated &= ~settled
    records = np.flatnonzero(repeated[first])
    records = records[np.lexsort((times_ms[records], first[records]))]
    # Most IDs are settled or have one record, so the steps below do not need their entries.
    entry_record = first_records[matches.index]
    relevant = np.flatnonzero(repeated[entry_record])
    entry_ms = matches.first_ms[relevant], matches.last_ms[relevant]
    seen = _seen(records, first[records], times_ms, entry_record[relevant], entry_ms, horizon_ms)
    ranked = _ranked(first[records], times_ms[records], seen, records, tie_rank)
    if ranked is not None:
        records, seen = records[ranked], seen[ranked]
    verdicts[records] = kernel.scan_verdicts(
        first[records], times_ms[records], seen, droppable[records].astype(np.uint8), horizon_ms
    )
    return verdicts


def _ranked(
    groups: I64, times_ms: I64, seen: U8, records: I64, tie_rank: Callable[[I64], I64]
) -> I64 | None:
    """Return the order of records by group, time and rank, or None if no ranks matter.

    A group is the records of one ID. Tied records have equal group and time, so either all or none
    of them are seen. Seen records are never taken, so their order does not matter.
    """
    same = (groups[1:] == groups[:-1]) & (times_ms[1:] == times_ms[:-1]) & (seen[1:] == 0)
    if not same.any():
        return None
    tied = np.zeros(len(groups), np.bool_)
    tied[1:] |= same
    tied[:-1] |= same
    rank = np.zeros(len(groups), np.int64)
    rank[tied] = tie_rank(records[tied])
    ranked: I64 = np.lexsort((rank, times_ms, groups))
    return ranked


def _seen(
    records: I64,
    groups: I64,
    times_ms: I64,
    entry_group: I64,
    entry_ms: tuple[I64, I64],
    horizon_ms: int,
) -> U8:
    """Return for each record whether an entry of its ID is within the horizon.

    ``groups`` are the records' IDs as sorted numbers. ``entry_group`` are the entries' IDs.
    """
    seen = np.zeros(len(records), np.uint8)
    entry, record = pairs_in_groups(entry_group, groups)
    first_ms, last_ms = (ms[entry] for ms in entry_ms)
    near = within_horizon(times_ms[records[record]], first_ms, last_ms, horizon_ms)
    seen[record[near]] = 1
    return seen

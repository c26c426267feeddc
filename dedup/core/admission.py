"""Which time a record is judged by, which times its clock believes, and which verdicts go on."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from dedup.core.arrays import BOOL, I64, U8
from dedup.core.arrival import Verdict
from dedup.core.clocks import NEVER_MS

NullIds: TypeAlias = Literal["emit", "drop", "error"]
NullTimestamps: TypeAlias = Literal["error", "now", "emit", "drop"]
Conflicts: TypeAlias = Literal["drop", "emit"]

#: Flags of a record, set where it is packed.
FLAG_NULL_ID = 1
FLAG_FUTURE = 2
FLAG_NULL_TIME = 4
#: It has no timestamp, and the micro-batch's time does not stand in for one.
FLAG_UNTIMED = 8


def substitute_times(
    times_ms: I64,
    null: BOOL,
    flags: U8,
    *,
    now_ms: int,
    max_future_ms: int,
    null_timestamps: NullTimestamps,
    in_id: bool,
) -> None:
    """Put the micro-batch's time in place of times that are null or in the future, and flag them.

    Parameters
    ----------
    times_ms : int64 array, shape (n,)
        Changed in place; anything where `null` is set.
    null : bool array, shape (n,)
        Records without a timestamp.
    flags : uint8 array, shape (n,)
        Changed in place; FLAG_NULL_ID is set already.
    now_ms, max_future_ms : int
        Later than both together is the future.
    null_timestamps : {"error", "now", "emit", "drop"}
        Under ``"now"`` alone the micro-batch's time stands in for a null one.
    in_id : bool
        The timestamp is a part of the ID: a record without an ID then lacks nothing else.
    """
    no_id = (flags & FLAG_NULL_ID) != 0
    future = (times_ms > now_ms + max_future_ms) & ~null
    flags[null & ~no_id if in_id else null] |= FLAG_NULL_TIME
    flags[null & no_id if null_timestamps == "now" else null] |= FLAG_UNTIMED
    flags[future] |= FLAG_FUTURE
    times_ms[null | future] = now_ms


def observed_times(times_ms: I64, flags: U8) -> tuple[BOOL, I64]:
    """Return which records a clock observes, and the times that it believes (or NEVER_MS).

    A record without a time must not found a source partition of its own, which the low watermark
    would wait for: a broken line is null in all columns. A time that was substituted is no news.
    """
    timed: BOOL = (flags & FLAG_UNTIMED) == 0
    own = (flags & (FLAG_FUTURE | FLAG_NULL_TIME | FLAG_UNTIMED)) == 0
    return timed, np.where(own, times_ms, np.int64(NEVER_MS))


def goes_on(
    *, late: str, null_ids: str, null_timestamps: str, conflicts: str, verdict_column: bool
) -> frozenset[Verdict]:
    """Return the verdicts whose rows leave the operator: with a verdict column, all of them."""
    if verdict_column:
        return frozenset(Verdict)
    emitted = {
        Verdict.UNIQUE: True,
        Verdict.LATE: late == "emit",
        Verdict.NULL_ID: null_ids == "emit",
        Verdict.UNTIMED: null_timestamps == "emit",
        Verdict.CONFLICT: conflicts == "emit",
    }
    return frozenset(verdict for verdict, emits in emitted.items() if emits)


#: Key of a verdict column's metadata: the verdicts whose rows would go on without the column.
GOES_ON = "dedup.goes_on"
#: And all that there are.
EVERY_VERDICT = "dedup.verdicts"


def names_that_go_on(
    *, late: str, null_ids: str, null_timestamps: str, conflicts: str, verdict_column: bool
) -> frozenset[str]:
    """Return the same verdicts by the names that a verdict column has for them."""
    emitted = goes_on(
        late=late,
        null_ids=null_ids,
        null_timestamps=null_timestamps,
        conflicts=conflicts,
        verdict_column=verdict_column,
    )
    return frozenset(verdict.name.lower() for verdict in emitted)

"""Decide which timestamps a query trusts, and which verdicts let a row pass through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

import numpy as np

from dedup.core.arrival import Verdict
from dedup.core.clocks import NEVER_MS
from dedup.errors import DataError
from dedup.kernel.arrays import BOOL, I64, U8

Late: TypeAlias = Literal["emit", "drop"]
NullIds: TypeAlias = Literal["emit", "drop", "error"]
NullTimestamps: TypeAlias = Literal["error", "now", "emit", "drop"]
Conflicts: TypeAlias = Literal["drop", "emit"]

#: Flags of a record. The pack step sets them.
FLAG_NULL_ID = 1
FLAG_FUTURE = 2
FLAG_NULL_TIME = 4
#: The record has no timestamp, and the time of the micro-batch does not replace it.
FLAG_UNTIMED = 8

#: Keys in a verdict column's metadata. `GOES_ON` lists the verdicts that pass through without a
#: verdict column, `EVERY_VERDICT` lists all verdicts.
GOES_ON = "dedup.goes_on"
EVERY_VERDICT = "dedup.verdicts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handling:
    """The user's choices for rows that are neither unique nor plain duplicates.

    The fields are options of `dedup_by_id`. If the user names a verdict column, every row passes
    through.
    """

    late: Late = "emit"
    null_ids: NullIds = "emit"
    null_timestamps: NullTimestamps = "error"
    conflicts: Conflicts = "drop"
    verdict: str | None = None

    @staticmethod
    def of(options: object) -> Handling:
        return Handling(**{f.name: getattr(options, f.name) for f in fields(Handling)})

    @property
    def emitted(self) -> frozenset[str]:
        """Names of the verdicts that pass through if there is no verdict column."""
        emitted = {
            Verdict.UNIQUE: True,
            Verdict.LATE: self.late == "emit",
            Verdict.NULL_ID: self.null_ids == "emit",
            Verdict.UNTIMED: self.null_timestamps == "emit",
            Verdict.CONFLICT: self.conflicts == "emit",
        }
        return frozenset(verdict.name.lower() for verdict, emits in emitted.items() if emits)

    @property
    def passing(self) -> frozenset[str]:
        every = frozenset(verdict.name.lower() for verdict in Verdict)
        return self.emitted if self.verdict is None else every

    def check_ids(self, null: BOOL, names: str, first: Callable[[BOOL], str]) -> None:
        """Raise DataError if there are records without an ID and the user chose ``"error"``.

        The error shows ``names``, the columns of the ID. It also shows the sentence that ``first``
        returns, which identifies the first record marked in the mask that it is given.
        """
        if self.null_ids == "error" and null.any():
            raise DataError(
                f'{int(null.sum())} records have a null ID ({names}) and null_ids="error" is set. '
                f'{first(null)} Fix the records, or choose null_ids="emit" or "drop".',
                remedy="bad-records",
            )

    def check_times(self, missing: BOOL, source: str, first: Callable[[BOOL], str]) -> None:
        """Raise DataError if records with an ID lack a time and the user chose ``"error"``.

        The error shows ``source``, the timestamp column. ``first`` is as in `check_ids`.
        """
        if self.null_timestamps == "error" and missing.any():
            raise DataError(
                f"{int(missing.sum())} records have no timestamp ({source}) and "
                f'null_timestamps="error" is set. {first(missing)} Fix the records, or choose '
                'null_timestamps="now" to take the time of the micro-batch, "emit" to pass them '
                'through without de-duplication, or "drop".',
                remedy="bad-records",
            )

    def substitute_times(
        self, times_ms: I64, null: BOOL, flags: U8, *, now_ms: int, max_future_ms: int, in_id: bool
    ) -> None:
        """Replace null and future times by the time of the micro-batch, and flag these records.

        Changes ``times_ms`` and ``flags`` in place. The caller has set FLAG_NULL_ID. A time is in
        the future if it is later than ``now_ms + max_future_ms``. If ``in_id``, the timestamp is
        part of the ID, and records without an ID do not get FLAG_NULL_TIME.
        """
        no_id = (flags & FLAG_NULL_ID) != 0
        future = (times_ms > now_ms + max_future_ms) & ~null
        flags[null & ~no_id if in_id else null] |= FLAG_NULL_TIME
        flags[null & no_id if self.null_timestamps == "now" else null] |= FLAG_UNTIMED
        flags[future] |= FLAG_FUTURE
        times_ms[null | future] = now_ms


def observed_times(times_ms: I64, flags: U8) -> tuple[BOOL, I64]:
    """Return a mask of the records that clocks count, and the times that may advance a clock.

    A record without a time, such as a broken line with null in all columns, must not create a
    source partition that the low watermark waits for. A replaced time does not advance a clock, so
    NEVER_MS takes its place.
    """
    timed: BOOL = (flags & FLAG_UNTIMED) == 0
    own = (flags & (FLAG_FUTURE | FLAG_NULL_TIME | FLAG_UNTIMED)) == 0
    return timed, np.where(own, times_ms, np.int64(NEVER_MS))

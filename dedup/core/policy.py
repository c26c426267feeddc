"""The rules for judging one micro-batch: plain numbers, resolved from the user's options.

All of these rules may change at a restart of the query, from the next micro-batch on. The birth
certificate holds the options that may not change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

#: Largest number of segments that may hold one ID in a bucket that still grows.
MAX_OPEN_SEGMENTS = 16
#: Bounds of options: buckets per horizon, false-positive rate, and state of a shard.
MAX_BUCKETS = 1000
MIN_FPR = 1e-6
MIN_BUDGET_BYTES = 16 << 10
#: Every copy is judged exactly, by the filters alone, or not at all.
Guarantee: TypeAlias = Literal["exactly-once", "at-most-once", "at-least-once"]
GUARANTEES: tuple[Guarantee, ...] = get_args(Guarantee)
_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Rules of one micro-batch."""

    #: Two records with the same ID at most this far apart are duplicates (inclusive), >= 1.
    horizon_ms: int
    #: Length of a bucket, in [1, horizon_ms], so that an ID occurs at most once in a bucket.
    bucket_ms: int
    #: If False, timestamps come from the micro-batch's clock (processing time).
    event_time: bool = False
    #: How far behind the low watermark a record is still on time. 0 in processing-time mode.
    lateness_ms: int = 0
    #: How to handle a record behind the late watermark whose ID is unknown.
    late: Literal["emit", "drop"] = "emit"
    #: Every copy of a record carries the same timestamp, so only its own bucket is probed.
    stable_timestamps: bool = False
    #: Names of the columns that identify a source partition.
    source_columns: tuple[str, ...] = ()
    #: Query time after which a silent source partition no longer holds back the low watermark.
    idle_timeout_ms: int | None = 600_000
    #: Target false-positive rate of the union of all filters that one lookup probes, in (0, 1).
    fpr: float = 0.01
    #: Bound of the state row. Half of it is for the tail.
    state_budget_bytes: int = 1 << 20
    #: Merges make segments of at most about this many IDs, one at a time, >= 1.
    segment_ids: int = 1 << 20
    #: Expired segments stay at the catalog root at least this long.
    keep_expired_ms: int = 86_400_000
    #: Number of micro-batches that Spark can roll back. Expired segments are kept longer.
    retain_epochs: int = 100
    #: Processing-time mode: accept any jump of the clock.
    accept_clock_jump: bool = False
    #: At most once: a hit in a filter counts as seen, without the catalog. At least once: every
    #: record passes, and none is remembered.
    guarantee: Guarantee = "exactly-once"
    #: Name of the set of columns that are compared between copies of a record, or None.
    payload: str | None = None

    @property
    def forgets_at_late(self) -> bool:
        """Whether buckets without clamped IDs expire at the late watermark (invariant 9)."""
        return self.stable_timestamps and self.late == "drop"

    @property
    def closed_filter_fpr(self) -> float:
        """Target of the one large filter of each closed bucket: half of the union's rate."""
        # A closed bucket ends at or behind the low watermark. A record is judged at or after the
        # late watermark, and probes one horizon to both sides.
        return self.fpr / 2 / self._probed(self.horizon_ms + min(self.lateness_ms, self.horizon_ms))

    @property
    def open_filter_fpr(self) -> float:
        """Target of each filter of an open bucket: its share of the other half."""
        reach_ms = min(self.lateness_ms, self.horizon_ms)
        return self.fpr / 2 / MAX_OPEN_SEGMENTS / self._probed(reach_ms)

    def _probed(self, reach_ms: int) -> int:
        return 1 if self.stable_timestamps else 1 + -(-reach_ms // self.bucket_ms)


def default_lateness_ms(horizon_ms: int, *, stable_timestamps: bool) -> int:
    """Return the default of the option `lateness` in event-time mode."""
    return horizon_ms if stable_timestamps else min(horizon_ms, _HOUR_MS)

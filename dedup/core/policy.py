"""The rules one micro-batch is judged by: plain numbers, resolved from the user's options.

All of them may change when a query restarts, and apply from its next micro-batch on. Settings that
must not change are in the birth certificate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

#: At most this many segments that one ID may be in, in a bucket that still grows.
MAX_OPEN_SEGMENTS = 16
#: Bounds of options: buckets per horizon, rate of the filters, and state of a shard.
MAX_BUCKETS = 1000
MIN_FPR = 1e-6
MIN_BUDGET_BYTES = 16 << 10
#: What a query may promise: every copy is judged exactly, by the filters alone, or not at all.
Guarantee: TypeAlias = Literal["exactly-once", "at-most-once", "at-least-once"]
GUARANTEES: tuple[Guarantee, ...] = get_args(Guarantee)
_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Rules of one micro-batch.

    Parameters
    ----------
    horizon_ms : int
        Two records with the same ID at most this far apart are duplicates (inclusive), >= 1.
    bucket_ms : int
        Length of a bucket, in [1, horizon_ms], so that an ID occurs at most once in a bucket.
    event_time : bool
        False: processing time; timestamps come from the micro-batch's clock.
    lateness_ms : int
        How far behind the low watermark a record is still on time; 0 in processing-time mode.
    late : {"emit", "drop"}
        What becomes of a record behind the late watermark whose ID is unknown.
    stable_timestamps : bool
        Every copy of a record carries the same timestamp, so only its own bucket is probed.
    source_columns : tuple of str
        Names of the columns that identify a source partition.
    idle_timeout_ms : int or None
        Query time after which a silent source partition no longer holds the low watermark.
    fpr : float
        Target false-positive rate of the union of all filters that one lookup probes, in (0, 1).
    state_budget_bytes : int
        Bound of the state row; half of it is for the tail.
    segment_ids : int
        Merges make segments of at most about this many IDs, one at a time, >= 1.
    keep_expired_ms : int
        Expired segments stay at the catalog root at least this long.
    retain_epochs : int
        Epochs that Spark can roll back; expired segments outlive them.
    accept_clock_jump : bool
        Processing-time mode: take a jump of the clock as it is.
    guarantee : {"exactly-once", "at-most-once", "at-least-once"}
        At most once: what a filter may hold counts as seen, and the catalog is not asked. At least
        once: every record goes on, and none is remembered.
    payload : str or None
        Name of the set of columns that copies of a record are compared by; None: by none.
    """

    horizon_ms: int
    bucket_ms: int
    event_time: bool = False
    lateness_ms: int = 0
    late: Literal["emit", "drop"] = "emit"
    stable_timestamps: bool = False
    source_columns: tuple[str, ...] = ()
    idle_timeout_ms: int | None = 600_000
    fpr: float = 0.01
    state_budget_bytes: int = 1 << 20
    segment_ids: int = 1 << 20
    keep_expired_ms: int = 86_400_000
    retain_epochs: int = 100
    accept_clock_jump: bool = False
    guarantee: Guarantee = "exactly-once"
    payload: str | None = None

    @property
    def forgets_at_late(self) -> bool:
        """Buckets without clamped IDs go at the late watermark already (invariant 9)."""
        return self.stable_timestamps and self.late == "drop"

    @property
    def closed_filter_fpr(self) -> float:
        """Target of the one large filter of each bucket whose time is over: half the union's."""
        # Such a bucket ends at or behind the low watermark. A record is judged at the late one or
        # after it, and asks for a horizon to both sides.
        return self.fpr / 2 / self._probed(self.horizon_ms + min(self.lateness_ms, self.horizon_ms))

    @property
    def open_filter_fpr(self) -> float:
        """Target of each filter of a bucket that still grows: the other half, over all of them."""
        reach_ms = min(self.lateness_ms, self.horizon_ms)
        return self.fpr / 2 / MAX_OPEN_SEGMENTS / self._probed(reach_ms)

    def _probed(self, reach_ms: int) -> int:
        return 1 if self.stable_timestamps else 1 + -(-reach_ms // self.bucket_ms)


def default_lateness_ms(horizon_ms: int, *, stable_timestamps: bool) -> int:
    """Return how far behind is on time where the user says nothing, in event-time mode."""
    return horizon_ms if stable_timestamps else min(horizon_ms, _HOUR_MS)

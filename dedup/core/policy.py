"""The rules for judging one micro-batch, computed from the user's options.

Each of these rules may change when the query restarts. The birth certificate at the catalog root
holds the options that may never change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

#: In a bucket that still grows, at most this many segments may hold one ID.
MAX_OPEN_SEGMENTS = 16
#: While records may enter a bucket, its filters are sized as if it became this many times as large.
GROWTH = 6
#: Filters are sized for this part of `fpr`, because shares are estimates and "at-most-once" loses
#: records at the rate.
FPR_MARGIN = 0.8
#: Bounds of options: buckets per horizon, false-positive rate, and state of a shard.
MAX_BUCKETS = 1000
MIN_FPR = 1e-6
MIN_BUDGET_BYTES = 16 << 10
#: Defaults: buckets per horizon, and bytes of filters in the state row.
BUCKETS = 8
FILTER_STATE_BYTES = 3 << 19
#: Largest number of IDs in a segment that a merge writes.
SEGMENT_IDS = 1 << 20
#: The word by which a user accepts that the clock jumped.
CLOCK_JUMP = "clock-jump"
#: How records are judged: exactly, by the filters without the catalog, or not at all.
Guarantee: TypeAlias = Literal["exactly-once", "at-most-once", "at-least-once"]
_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules of one micro-batch."""

    #: Records with the same ID are duplicates if their times differ by at most this, >= 1.
    horizon_ms: int
    #: Length of a bucket. At most the horizon, so that an ID occurs at most once in a bucket.
    bucket_ms: int
    #: Whether records carry timestamps. If not, each gets the micro-batch's time (processing time).
    event_time: bool = False
    #: How far behind the low watermark a record is still on time. 0 in processing-time mode.
    lateness_ms: int = 0
    #: How to handle a record behind the late watermark whose ID is unknown.
    late: Literal["emit", "drop"] = "emit"
    #: Whether all copies of a record carry the same timestamp. If so, lookups can skip the buckets
    #: of other timestamps.
    stable_timestamps: bool = False
    #: Names of the columns that identify a source partition.
    source_columns: tuple[str, ...] = ()
    #: Query time after which a silent source partition no longer holds back the low watermark. None
    #: if it always does.
    idle_timeout_ms: int | None = 600_000
    #: Delay of the watermark of a window after the operator, or None if there is no such window.
    window_delay_ms: int | None = None
    #: Target false-positive rate of the union of all filters that one lookup probes, in (0, 1).
    fpr: float = 0.01
    #: Largest size of the state row of a shard. Half of it is for the tail.
    state_budget_bytes: int = 1 << 20
    #: Largest number of bytes of filters in the state row.
    max_filter_state_bytes: int = FILTER_STATE_BYTES
    #: Whether micro-batches with few records keep fewer filters in the state row than that.
    filters_by_load: bool = True
    #: A merge writes segments of at most about this many IDs, >= 1.
    segment_ids: int = SEGMENT_IDS
    #: Time for which expired segments stay at the catalog root at least.
    keep_expired_ms: int = 86_400_000
    #: Number of micro-batches that Spark can roll back. Expired segments stay at the catalog root
    #: for more micro-batches.
    retain_epochs: int = 100
    #: Whether to accept any jump of the micro-batch's clock.
    accept_clock_jump: bool = False
    #: Under "at-most-once" a filter hit counts as seen without a look into the catalog. Under
    #: "at-least-once" every record passes through, and none is remembered.
    guarantee: Guarantee = "exactly-once"
    #: Name of the set of columns to compare between copies of a record, or None.
    payload: str | None = None
    #: Number of live IDs of all shards, or with `of_shard` of one, beyond which the oldest buckets
    #: are forgotten early. None: without a limit.
    max_live_ids: int | None = None

    def of_shard(self, shards: int) -> Policy:
        """Return the policy of one of several shards, with its share of the live IDs."""
        most = self.max_live_ids
        return replace(self, max_live_ids=None if most is None else -(-most // shards))

    @property
    def forgets_at_late(self) -> bool:
        """Whether buckets without clamped IDs expire at the late instead of the GC watermark."""
        return self.stable_timestamps and self.late == "drop"

    @property
    def buckets_probed(self) -> int:
        """Largest number of buckets that a lookup probes."""
        if self.stable_timestamps:
            return 1
        # A record is judged at or after the late watermark, and probes one horizon to both sides.
        reach_ms = self.horizon_ms + min(self.lateness_ms, self.horizon_ms)
        return 1 + -(-reach_ms // self.bucket_ms)

    def filter_fpr(self, share: float) -> float:
        """Return the target false-positive rate of the filter of a run.

        ``share`` is the run's share of all IDs whose filters a lookup probes. Rates in proportion
        to IDs take the fewest bits. A run with a very small share gets more, because a split-block
        filter of a very low rate is large.
        """
        least = 1 / (MAX_OPEN_SEGMENTS * max(GROWTH, self.buckets_probed))
        return FPR_MARGIN * self.fpr * max(share, least)


def default_lateness_ms(horizon_ms: int, *, stable_timestamps: bool) -> int:
    """Return the default of the option `lateness` in event-time mode."""
    return horizon_ms if stable_timestamps else min(horizon_ms, _HOUR_MS)

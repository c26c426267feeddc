"""What a query is asked to remember: from a number, or as a running query or catalog shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dedup import kernel
from dedup.core.clocks import NEVER_MS, Clocks
from dedup.core.duration import format_ms
from dedup.core.keys import Keys
from dedup.core.metrics import BatchMetrics
from dedup.core.policy import Policy
from dedup.core.sharding import derive_keys, shards_of
from dedup.core.state import ShardState
from dedup.errors import ConfigError
from dedup.tune.counting import SST_BYTES_BESIDE_KEY
from dedup.tune.trial import UUID_BYTES, KeysOf, made_keys

DAY_MS = 86_400_000
#: Bounds of what trials go through in a minute or two.
MAX_KEY_BYTES, MAX_BUCKETS = 1024, 128
#: Records of a shard in a micro-batch of a query that is behind, at least.
BUSY_ROWS = 10_000
#: IDs that stand for all when shards are filled with IDs that were made up.
_SPREAD_IDS = 1_000_000
_NO_QUERY = "00000000-0000-4000-8000-000000000000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """Options of `dedup_by_id` that decide sizes; its defaults.

    Parameters
    ----------
    buckets : int
        Per horizon.
    fpr : float
    state_budget_bytes : int
    """

    buckets: int = 8
    fpr: float = 0.01
    state_budget_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """What the repeats of a sample show; arrays are sorted, one entry for each repeat.

    Parameters
    ----------
    apart_ms : int64 array
        Effective timestamp of the repeat less that of the ID's first copy.
    behind_ms : int64 array
        Of every record that is behind: how far its timestamp is behind the newest one of the files
        before its own.
    records : int
        All records that carry an ID and a timestamp.
    same_timestamp : int
        Repeats that carry the very timestamp of the first copy.
    span_ms : int
        From the oldest timestamp to the newest.
    """

    apart_ms: np.ndarray
    behind_ms: np.ndarray
    records: int
    same_timestamp: int
    span_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What is known of a query's load.

    Parameters
    ----------
    origin : str
        Where that comes from, for people.
    ids_per_day : float
        New IDs in a day of the data's own time.
    duplicates : float
        Share of records that repeat an ID, in [0, 1).
    horizon_ms, lateness_ms : int
    event_time, stable_timestamps : bool
    late : {"emit", "drop"}
    batch_ms : int
        Time between micro-batches.
    batch_known : bool
        False: nobody said it, and it is assumed.
    shards : int
    cores : int
        Of all executors together.
    cores_given : bool
        False: they are this machine's.
    key_bytes : int
        Mean length of an ID's canonical bytes.
    today : Sizing or None
        What a running query has, where that is known.
    shard_ids : tuple of int
        Live IDs in each shard, as far as it was seen; empty: none was.
    fullest : float or None
        Live IDs of the fullest shard over their mean, where a running query tells only that.
    keys : Keys or None
        IDs of a sample, each once.
    repeats : Repeats or None
        Of a sample with timestamps.
    running : bool
        Whether the query has begun, so that some options are fixed.
    seen_fpr : tuple of (int, int) or None
        False positives and IDs that filters were asked for, of a running query.
    seen_live : int or None
        Live IDs of a running query that is old enough to forget some.
    seen_segments : int or None
        Segments of a running query.
    """

    origin: str
    ids_per_day: float
    duplicates: float = 0.05
    horizon_ms: int
    lateness_ms: int
    event_time: bool = True
    stable_timestamps: bool = False
    late: Literal["emit", "drop"] = "emit"
    batch_ms: int = 60_000
    batch_known: bool = False
    shards: int
    cores: int
    cores_given: bool = True
    key_bytes: int = UUID_BYTES
    today: Sizing | None = None
    shard_ids: tuple[int, ...] = ()
    fullest: float | None = None
    keys: Keys | None = None
    repeats: Repeats | None = None
    running: bool = False
    seen_fpr: tuple[int, int] | None = None
    seen_live: int | None = None
    seen_segments: int | None = None

    @property
    def forgets_at_late(self) -> bool:
        """As `Policy.forgets_at_late`."""
        return self.policy(Sizing()).forgets_at_late

    @property
    def live_ids(self) -> float:
        """IDs that are remembered; whole buckets go, so that a query holds some more."""
        kept_ms = self.lateness_ms + (0 if self.forgets_at_late else self.horizon_ms)
        return self.ids_per_day * kept_ms / DAY_MS

    @property
    def cores_told(self) -> str:
        """The cores, and whose they are where nobody said, for people."""
        return f"{self.cores} cores" if self.cores_given else f"this machine's {self.cores} cores"

    @property
    def interval_told(self) -> str:
        """How far micro-batches are apart, and whether that is assumed, for people."""
        assumed = "" if self.batch_known else " (assumed: give --batch)"
        rounded_ms = round(self.batch_ms, -3) if self.batch_ms >= 10_000 else self.batch_ms
        return f"a micro-batch every {format_ms(rounded_ms)}{assumed}"

    @property
    def records_per_s(self) -> float:
        """Records, repeats included."""
        return self.ids_per_day / DAY_MS * 1000 / (1 - self.duplicates)

    @property
    def rows_per_shard(self) -> float:
        """Records of a shard in a micro-batch."""
        return max(1.0, self.records_per_s * self.batch_ms / 1000 / self.shards)

    @property
    def busy_rows(self) -> float:
        """Records of a shard in a micro-batch while the query catches up: when time matters."""
        return max(self.rows_per_shard, BUSY_ROWS)

    def policy(self, sizing: Sizing) -> Policy:
        """The core's rules under a choice of options."""
        return Policy(
            horizon_ms=self.horizon_ms,
            bucket_ms=-(-self.horizon_ms // sizing.buckets),
            event_time=self.event_time,
            lateness_ms=self.lateness_ms,
            late=self.late,
            stable_timestamps=self.stable_timestamps,
            fpr=sizing.fpr,
            state_budget_bytes=sizing.state_budget_bytes,
        )

    def keys_of(self) -> KeysOf:
        """Keys for a trial: the sample's, and made ones of the same length for the rest."""
        make, own = made_keys(self.key_bytes), self.keys
        if own is None or not len(own):
            return make
        count = len(own)

        def keys(numbers: np.ndarray) -> Keys:
            index = np.flatnonzero(numbers < count)
            if not len(index):
                return make(numbers)
            others = np.flatnonzero(numbers >= count)
            mixed = Keys.concat([own.take(numbers[index]), make(numbers[others])])
            place = np.empty(len(numbers), np.int64)
            place[np.concatenate([index, others])] = np.arange(len(numbers))
            return mixed.take(place)

        return keys

    def fill_of_shards(self, live_ids: float | None = None) -> tuple[int, ...]:
        """Live IDs of each shard: as seen, else as the hash spreads the sample's or made IDs.

        Parameters
        ----------
        live_ids : float, optional
            Of all shards, where none were seen. Default: `Demand.live_ids`.
        """
        if self.shard_ids:
            return self.shard_ids
        live_ids = self.live_ids if live_ids is None else live_ids
        keys = self.keys if self.keys is not None and len(self.keys) else None
        if keys is None:
            count = int(max(1, min(live_ids, _SPREAD_IDS)))
            keys = made_keys(self.key_bytes)(np.arange(count, dtype=np.int64))
        hashes = kernel.hash64(keys.data, keys.offsets, derive_keys(_NO_QUERY)[0])
        found = np.bincount(shards_of(hashes, self.shards), minlength=self.shards)
        return tuple(round(live_ids * n / len(keys)) for n in found.tolist())


def check(demand: Demand) -> Demand:
    """Return the demand, refusing what nothing can be measured for.

    Raises
    ------
    ConfigError
        Naming the number and the option that gives it.
    """
    if not demand.ids_per_day > 0 or not np.isfinite(demand.ids_per_day):
        raise ConfigError(
            f"With {demand.ids_per_day:g} new IDs a day ({demand.origin}) there is nothing to "
            "size. Give --ids-per-day."
        )
    if not 0 <= demand.duplicates < 1:
        raise ConfigError(
            f"--duplicate-share {demand.duplicates:g} is a share from 0 to below 1, such as 0.05."
        )
    if demand.batch_ms < 1:
        raise ConfigError("--batch must be at least a millisecond.")
    if demand.key_bytes > MAX_KEY_BYTES:
        raise ConfigError(
            f"IDs of {demand.key_bytes:,} bytes are longer than a trial can hold "
            f"({MAX_KEY_BYTES:,}): give the query a digest of them, such as F.sha2(...)."
        )
    if demand.today is not None and demand.today.buckets > MAX_BUCKETS:
        raise ConfigError(
            f"{demand.today.buckets} buckets per horizon are more than a trial goes through in "
            f"minutes ({MAX_BUCKETS}), as every lookup asks them all; 8 is best. Give --buckets 8."
        )
    if demand.live_ids > 1e13:
        raise ConfigError(f"{demand.live_ids:.3g} live IDs are more than any catalog can hold.")
    return demand


def of_batches(base: Demand, query: str, batches: Sequence[tuple[int, BatchMetrics]]) -> Demand:
    """The demand that a metrics log shows, options of the last micro-batch included.

    Parameters
    ----------
    base : Demand
        What the log does not tell.
    query : str
        Name or ID, for people.
    batches : sequence of (int, BatchMetrics)
        When each was heard of, and what it did; the oldest first.

    Raises
    ------
    ConfigError
        If there are fewer than two of them, or time stands still between them.
    """
    if len(batches) < 2:
        raise ConfigError(
            f"The metrics log of query {query} holds {len(batches)} micro-batches; it takes two to "
            "tell a rate. Let the query go on, or give --ids-per-day."
        )
    last = batches[-1][1]
    done = [batch for _, batch in batches[1:]]
    records = sum(batch.unique + batch.late + batch.duplicate for batch in done)
    new = sum(batch.unique + batch.late for batch in done)
    times = [batch.newest_ms for _, batch in batches if batch.newest_ms is not None]
    passed_ms = times[-1] - times[0] if times else 0
    if passed_ms <= 0 or not records:
        raise ConfigError(
            f"In the metrics log of query {query} no data came, or its time stood still; give "
            "--ids-per-day."
        )
    sealed = last.live_ids - last.tail_ids
    key_bytes = base.key_bytes
    if sealed > 0 and last.segment_bytes:
        key_bytes = max(1, round(last.segment_bytes / sealed - SST_BYTES_BESIDE_KEY))
    begins_ms = next((batch.newest_ms for _, batch in batches if batch.begins), None)
    young = begins_ms is not None and times[-1] - begins_ms < last.horizon_ms + last.lateness_ms
    wrong = sum(batch.filter_false_positive for _, batch in batches)
    asked = wrong + sum(batch.filter_negative for _, batch in batches)
    return replace(
        base,
        origin=f"the metrics log of query {query}, {len(batches)} micro-batches",
        ids_per_day=new / passed_ms * DAY_MS,
        duplicates=1 - new / records,
        horizon_ms=last.horizon_ms,
        lateness_ms=last.lateness_ms,
        # Of the data's time, as the rate is: a query that catches up goes through more of it.
        batch_ms=max(1, round(passed_ms / (len(batches) - 1))),
        batch_known=True,
        shards=last.shards,
        key_bytes=key_bytes,
        today=Sizing(
            buckets=-(-last.horizon_ms // last.bucket_ms),
            fpr=last.target_fpr,
            state_budget_bytes=last.state_budget_bytes,
        ),
        fullest=last.fullest_shard_ids * last.shards / last.live_ids if last.live_ids else None,
        running=True,
        seen_fpr=(wrong, asked) if asked else None,
        seen_live=None if young else last.live_ids,
    )


def of_states(base: Demand, query: str, states: Mapping[int, ShardState]) -> Demand:
    """The demand that a query's states in its checkpoint show.

    Parameters
    ----------
    base : Demand
        What they do not tell.
    query : str
        Its ID, for people.
    states : mapping of shard to ShardState

    Raises
    ------
    ConfigError
        If they hold no IDs, or have not seen time pass.
    """
    live = {shard: state.manifest.ids + len(state.tail) for shard, state in states.items()}
    # Shards hear the same clocks; one that missed the last micro-batch is behind.
    clocks = max((s.clocks for s in states.values()), key=lambda c: c.newest_ms, default=Clocks())
    late_ms, gc_ms = clocks.late_watermark_ms, clocks.gc_watermark_ms
    if not sum(live.values()) or gc_ms == NEVER_MS:
        raise ConfigError(
            f"The checkpoint of query {query} holds no IDs yet; give --ids-per-day and --horizon."
        )
    bucket_ms = max(state.bucket_ms for state in states.values())
    whole: Counter[tuple[int, int]] = Counter()
    first_ms = late_ms
    for state in states.values():
        for bucket in state.manifest.buckets:
            first_ms = min(first_ms, bucket.start_ms)
            if gc_ms <= bucket.start_ms and bucket.end_ms <= late_ms:
                whole[bucket.range] += bucket.ids
    # The oldest bucket and those that grow are cut off by time.
    ids, span_ms = sum(whole.values()), sum(end - start for start, end in whole)
    if not ids:
        ids, span_ms = sum(live.values()), clocks.newest_ms - first_ms
    segments = [s for state in states.values() for s in state.manifest.segments()]
    key_bytes = base.key_bytes
    if segments:
        sst_bytes, count = sum(s.sst_bytes for s in segments), sum(s.count for s in segments)
        key_bytes = max(1, round(sst_bytes / max(1, count) - SST_BYTES_BESIDE_KEY))
    today = base.today or Sizing()
    # Only a query that drops what is late forgets at the late watermark.
    drops = base.stable_timestamps and late_ms <= max(
        state.forgotten_before_ms for state in states.values()
    )
    return replace(
        base,
        origin=f"the catalog of query {query}, {sum(live.values()):,} live IDs",
        ids_per_day=ids / max(1, span_ms) * DAY_MS,
        horizon_ms=max(1, late_ms - gc_ms),
        lateness_ms=max(0, clocks.low_watermark_ms - late_ms),
        late="drop" if drops else base.late,
        shards=len(states),
        key_bytes=key_bytes,
        today=replace(today, buckets=max(1, round((late_ms - gc_ms) / max(1, bucket_ms)))),
        shard_ids=tuple(count for _, count in sorted(live.items())),
        running=True,
        seen_segments=len(segments),
    )

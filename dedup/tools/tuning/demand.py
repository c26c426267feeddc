"""The load that `tune` measures options for: rates, horizon and options of a query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dedup import kernel
from dedup.core.keys import Keys
from dedup.core.policy import BUCKETS, FILTER_STATE_BYTES, Policy
from dedup.core.sharding import derive_keys, shards_of
from dedup.errors import ConfigError
from dedup.tools.tuning.load import UUID_BYTES, KeysOf, synthetic_keys
from dedup.values.duration import MS_PER_UNIT, duration_ms, format_ms

DAY_MS = 86_400_000
#: Largest ID and largest number of buckets that `tune` accepts, so that trials end soon.
MAX_KEY_BYTES, MAX_BUCKETS = 1024, 128
#: Assumed number of records per shard and micro-batch while a query catches up, at least.
BUSY_ROWS = 10_000
#: Largest number of synthetic IDs that show how the hash spreads IDs over shards.
_SPREAD_IDS = 1_000_000
_NO_QUERY = "00000000-0000-4000-8000-000000000000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """The options of `dedup_by_id` that decide sizes, with the same names and defaults."""

    bucket_length: str | None = None
    fpr: float = 0.01
    state_budget_bytes: int = 1 << 20
    filter_state_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """How IDs repeat in a sample. A repeat is a record whose ID an earlier record has."""

    #: Effective timestamp of every repeat minus that of the first record with the ID, sorted.
    apart_ms: np.ndarray
    #: How far records are behind the newest timestamp of earlier files, if they are, sorted.
    behind_ms: np.ndarray
    #: Number of records with an ID and a timestamp.
    records: int
    #: Number of repeats with the same timestamp as the first record with the ID.
    same_timestamp: int
    #: Time from the oldest to the newest timestamp, without outliers.
    span_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The load of a query, and the options that it runs with."""

    #: Name of the source of these figures, for messages.
    origin: str
    #: New IDs per day of event time.
    ids_per_day: float
    #: Share of records that repeat an ID, in [0, 1).
    duplicates: float = 0.05
    horizon_ms: int
    lateness_ms: int
    event_time: bool = True
    stable_timestamps: bool = False
    late: Literal["emit", "drop"] = "emit"
    #: Time between micro-batches. `batch_known` is False if we assume the time.
    batch_ms: int = 60_000
    batch_known: bool = False
    shards: int
    #: Number of cores of all executors. `cores_given` is False if we count this machine's cores.
    cores: int
    cores_given: bool = True
    #: Mean length of an ID's canonical bytes.
    key_bytes: int = UUID_BYTES
    #: Mean size of a row in Arrow's form. Unknown if it is 0.
    row_bytes: float = 0
    #: Options of the query, or the defaults.
    today: Sizing = Sizing()
    #: Live IDs in each shard, or empty if unknown.
    shard_ids: tuple[int, ...] = ()
    #: Number of live IDs in the fullest shard, divided by the mean. Set if `shard_ids` is unknown.
    fullest: float | None = None
    #: The distinct IDs of a sample.
    keys: Keys | None = None
    #: How IDs repeat in a sample with timestamps.
    repeats: Repeats | None = None
    #: Whether the query has started. A started query cannot change all options.
    running: bool = False
    #: Number of false positives in a running query, and number of lookups of new IDs.
    seen_fpr: tuple[int, int] | None = None
    #: Number of live IDs of a running query, if its oldest IDs have expired already.
    seen_live: int | None = None
    #: Number of segments of a running query.
    seen_segments: int | None = None

    @property
    def forgets_at_late(self) -> bool:
        return self.policy(Sizing()).forgets_at_late

    @property
    def live_ids(self) -> float:
        """Number of unexpired IDs. A query keeps a few more, because only whole buckets expire."""
        kept_ms = self.lateness_ms + (0 if self.forgets_at_late else self.horizon_ms)
        return self.ids_per_day * kept_ms / DAY_MS

    @property
    def cores_text(self) -> str:
        return f"{self.cores} cores" if self.cores_given else f"this machine's {self.cores} cores"

    @property
    def interval_text(self) -> str:
        assumed = "" if self.batch_known else " (assumed: give --batch)"
        step_ms = next((ms for ms in reversed(MS_PER_UNIT.values()) if self.batch_ms >= 10 * ms), 1)
        return f"a micro-batch every {format_ms(round(self.batch_ms / step_ms) * step_ms)}{assumed}"

    @property
    def records_per_s(self) -> float:
        """Records per second, repeats included."""
        return self.ids_per_day / DAY_MS * 1000 / (1 - self.duplicates)

    @property
    def rows_per_shard(self) -> float:
        return max(1.0, self.records_per_s * self.batch_ms / 1000 / self.shards)

    def policy(self, sizing: Sizing) -> Policy:
        filter_bytes = sizing.filter_state_bytes
        return Policy(
            horizon_ms=self.horizon_ms,
            bucket_ms=self.bucket_ms(sizing),
            event_time=self.event_time,
            lateness_ms=self.lateness_ms,
            late=self.late,
            stable_timestamps=self.stable_timestamps,
            fpr=sizing.fpr,
            state_budget_bytes=sizing.state_budget_bytes,
            max_filter_state_bytes=FILTER_STATE_BYTES if filter_bytes is None else filter_bytes,
            filters_by_load=filter_bytes is None,
        )

    def bucket_ms(self, sizing: Sizing) -> int:
        if sizing.bucket_length is None:
            return self.length_of(BUCKETS)
        return duration_ms(sizing.bucket_length, option="bucket_length")

    def length_of(self, buckets: int) -> int:
        """Return the length in milliseconds that makes so many buckets per horizon."""
        return -(-self.horizon_ms // buckets)

    def keys_of(self) -> KeysOf:
        """Return a function that makes keys from numbers.

        The first keys are the keys of the sample. Further keys are synthetic, of equal length.
        """
        make, sample = synthetic_keys(self.key_bytes), self.keys
        if sample is None or not len(sample):
            return make
        count = len(sample)

        def keys(numbers: np.ndarray) -> Keys:
            inside = numbers < count
            mixed = Keys.concat([sample.take(numbers[inside]), make(numbers[~inside])])
            # Invert the permutation that puts the sample's keys first.
            return mixed.take(np.argsort(np.argsort(~inside, kind="stable")))

        return keys

    def fill_of_shards(self, live_ids: float | None = None) -> tuple[int, ...]:
        """Return the live IDs of each shard, as known or as the hash spreads `live_ids`."""
        if self.shard_ids:
            return self.shard_ids
        live_ids = self.live_ids if live_ids is None else live_ids
        keys = self.keys if self.keys is not None and len(self.keys) else None
        if keys is None:
            count = int(max(1, min(live_ids, _SPREAD_IDS)))
            keys = synthetic_keys(self.key_bytes)(np.arange(count, dtype=np.int64))
        hashes = kernel.hash64(keys.data, keys.offsets, derive_keys(_NO_QUERY)[0])
        counts = np.bincount(shards_of(hashes, self.shards), minlength=self.shards)
        return tuple(round(live_ids * n / len(keys)) for n in counts.tolist())


def check(demand: Demand) -> Demand:
    if not demand.ids_per_day > 0 or not np.isfinite(demand.ids_per_day):
        raise ConfigError(
            f"With {demand.ids_per_day:g} new IDs a day ({demand.origin}) there is nothing to "
            "size. Give --ids-per-day."
        )
    if not 0 <= demand.duplicates < 1:
        raise ConfigError(
            f"--duplicate-share {demand.duplicates:g} must be from 0 to below 1, such as 0.05."
        )
    if demand.key_bytes > MAX_KEY_BYTES:
        raise ConfigError(
            f"IDs of {demand.key_bytes:,} bytes exceed the limit of a trial ({MAX_KEY_BYTES:,}). "
            "Give the query a digest of them, such as F.sha2(...)."
        )
    bucket_ms = demand.bucket_ms(demand.today)
    if not demand.length_of(MAX_BUCKETS) <= bucket_ms <= demand.horizon_ms:
        raise ConfigError(
            f"A bucket_length of {format_ms(bucket_ms)} is longer than the horizon "
            f"({format_ms(demand.horizon_ms)}), or makes more than {MAX_BUCKETS} buckets of it, "
            "the limit of a trial. Give --bucket-length "
            f"'{format_ms(demand.length_of(BUCKETS))}', an eighth of the horizon, which is best."
        )
    return demand

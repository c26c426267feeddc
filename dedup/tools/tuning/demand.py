"""What a query is asked to remember: rates, horizon and options, and what cannot be measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dedup import kernel
from dedup.core.duration import MS_PER_UNIT, format_ms
from dedup.core.keys import Keys
from dedup.core.policy import Policy
from dedup.core.sharding import derive_keys, shards_of
from dedup.errors import ConfigError
from dedup.tools.tuning.load import UUID_BYTES, KeysOf, synthetic_keys

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
    def cores_text(self) -> str:
        """The cores, and whose they are where nobody said, for people."""
        return f"{self.cores} cores" if self.cores_given else f"this machine's {self.cores} cores"

    @property
    def interval_text(self) -> str:
        """How far micro-batches are apart, and whether that is assumed, for people."""
        assumed = "" if self.batch_known else " (assumed: give --batch)"
        step_ms = next((ms for ms in reversed(MS_PER_UNIT.values()) if self.batch_ms >= 10 * ms), 1)
        return f"a micro-batch every {format_ms(round(self.batch_ms / step_ms) * step_ms)}{assumed}"

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
        """Return the core's rules under a choice of options."""
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
        """Return keys for a trial: the sample's, then synthetic ones of the same length."""
        make, sample = synthetic_keys(self.key_bytes), self.keys
        if sample is None or not len(sample):
            return make
        count = len(sample)

        def keys(numbers: np.ndarray) -> Keys:
            index = np.flatnonzero(numbers < count)
            if not len(index):
                return make(numbers)
            others = np.flatnonzero(numbers >= count)
            mixed = Keys.concat([sample.take(numbers[index]), make(numbers[others])])
            place = np.empty(len(numbers), np.int64)
            place[np.concatenate([index, others])] = np.arange(len(numbers))
            return mixed.take(place)

        return keys

    def fill_of_shards(self, live_ids: float | None = None) -> tuple[int, ...]:
        """Return the live IDs of each shard: as seen, else as the hash spreads IDs of the sample.

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
            keys = synthetic_keys(self.key_bytes)(np.arange(count, dtype=np.int64))
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

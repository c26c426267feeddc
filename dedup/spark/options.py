"""Declares the options of `dedup_by_id` and `dedup_by_sequence`, and checks their values.

Commands use the same declarations without Spark, so this module imports Spark only for a column.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, get_args

from dedup.core.admission import Conflicts, Handling, Late, NullIds, NullTimestamps
from dedup.core.policy import (
    BUCKETS,
    CLOCK_JUMP,
    FILTER_STATE_BYTES,
    MAX_BUCKETS,
    MIN_BUDGET_BYTES,
    MIN_FPR,
    Guarantee,
    Policy,
    default_lateness_ms,
)
from dedup.core.sequence import HANDLINGS, MOST_RANGES, RANGES, SequenceHandling, SequenceRule
from dedup.errors import ConfigError, DedupWarning
from dedup.spark.idtime import IdTime
from dedup.storage.location import FileSystemFactory
from dedup.storage.root import Root
from dedup.storage.uri import check_local
from dedup.values.duration import format_ms
from dedup.values.option import (
    REQUIRED,
    Kind,
    Option,
    by_name,
    choice,
    duration,
    nbytes,
    number,
    refused,
    switch,
    text,
    whole,
    words,
)

if TYPE_CHECKING:
    from dedup.spark.driver.columns import ColumnOrName, DerivedId

Columns: TypeAlias = "tuple[ColumnOrName, ...]"
Duration: TypeAlias = str | timedelta


def _columns(*, needed: bool = False) -> Kind:
    """Return the kind of an option that takes columns. Its checked value is a tuple."""

    def check(value: Any, name: str) -> tuple[Any, ...]:
        from pyspark.sql import Column

        if isinstance(value, (Set, Mapping)):
            raise refused(name, value, "be a list: a set has no order that lasts.")
        is_one = isinstance(value, (str, Column)) or not isinstance(value, Iterable)
        columns = (value,) if is_one else tuple(value)
        if needed and not columns:
            raise ConfigError(f"{name}=[] names no column.")
        return columns

    return Kind(check, metavar="COL")


def _payload(value: Any, name: str) -> bool | tuple[Any, ...]:
    if isinstance(value, bool):
        return value
    columns: tuple[Any, ...] = _columns().check(value, name)
    if not columns:
        raise ConfigError(f"{name}=[] names no column; True means all columns.")
    return columns


_COLUMN = Kind(lambda value, _: value, metavar="COL")
_PLACE = Kind(lambda value, _: value, metavar="DIR")
#: A duration, or None or ``never``.
_WAIT = Kind(
    lambda value, name: None if value in (None, "never") else duration().check(value, name),
    metavar="DURATION",
)
_SHARED = by_name(
    Option("timestamp", _COLUMN, None, "Event time. Default: the time of processing."),
    Option(
        "source_partition", _columns(), (),
        "Columns that identify a clock, such as Kafka's topic and partition.",
    ),
    Option("heartbeat", _COLUMN, None, "Boolean: the row only advances its clock."),
    Option(
        "null_timestamps", choice(*get_args(NullTimestamps)), "error",
        "Records without a timestamp.",
    ),
    Option("verdict", text(), None, "Column to add for verdicts; every row then passes.", "COL"),
    Option(
        "idle_timeout", _WAIT, "10 minutes",
        "How long to wait for a silent clock; 'never': forever.",
    ),
    Option("max_future", duration(), "10 minutes", "Timestamps further ahead count as now."),
    Option(
        "shards", whole(), None,
        "Number of shards, fixed at the first start. Default: shuffle partitions.",
    ),
    Option(
        "max_shard_batch_bytes", nbytes(), "1 GiB", "Largest share of a micro-batch of one shard.",
    ),
)  # fmt: skip
_NAME = text(rule="be a name; the query's figures are found under it.")
_METRICS = "Name of the query's figures."

#: The options of `dedup_by_id`, by name.
BY_ID = by_name(
    Option("id", _columns(needed=True), REQUIRED, "ID column; several make a composite ID."),
    Option("horizon", duration(1), REQUIRED, "How long an ID is remembered: '7 days'."),
    Option("catalog", _PLACE, None, "Where segments live; needed on streams."),
    _SHARED["timestamp"],
    _SHARED["source_partition"],
    _SHARED["heartbeat"],
    Option(
        "lateness", duration(), None,
        "How far behind the watermark is on time. Default: the horizon, at most 1 hour.",
    ),
    Option("late", choice(*get_args(Late)), "emit", "Late records with an unknown ID."),
    Option("window_delay", duration(), None, "Delay of the watermark of windows afterwards."),
    Option(
        "stable_timestamps", switch(), False,
        "All copies of a record have the same timestamp. Fixed at the first start.",
    ),
    _SHARED["max_future"],
    Option("null_ids", choice(*get_args(NullIds)), "emit", "Records without an ID."),
    _SHARED["null_timestamps"],
    _SHARED["verdict"],
    _SHARED["idle_timeout"],
    Option("order_by", _columns(), (), "Of copies with one timestamp, keep the smallest COL."),
    Option(
        "guarantee", choice(*get_args(Guarantee)), "exactly-once",
        "Look IDs up, trust the filters, or check nothing.",
    ),
    Option(
        "check_payload", Kind(_payload, metavar="COL"), False,
        "Columns in which the copies of a record must agree.",
    ),
    Option(
        "conflicts", choice(*get_args(Conflicts)), "drop",
        "Duplicates that differ in a compared column.",
    ),
    _SHARED["shards"],
    Option(
        "bucket_length", duration(1), None,
        "Length of a bucket. Default: an eighth of the horizon.",
    ),
    Option(
        "fpr",
        number(
            lambda rate: MIN_FPR <= rate < 1,
            f"from {MIN_FPR:g} to below 1; 0.01 is usual, and a false positive only costs a read",
        ),
        0.01, "False positives of the filters.", "P",
    ),
    Option(
        "state_budget_bytes", nbytes(MIN_BUDGET_BYTES), "1 MiB",
        "Spark state of a shard, without filters.",
    ),
    Option(
        "filter_state_bytes", nbytes(0), None,
        "Filters in the Spark state of a shard. Default: up to 1.5 MiB, by the load.",
    ),
    Option(
        "max_live_ids", whole(1, (1 << 63) - 1), None,
        "IDs beyond which the oldest buckets are forgotten early. Default: no limit.",
    ),
    Option("keep_expired", duration(), "24 hours", "How long expired files stay."),
    Option("shared_local", switch(), False, "The catalog is one mount on all machines."),
    Option(
        "cache_dir", text("(?s).*"), None,
        "Local directory for copies of segments. Default: Spark's.", "DIR",
    ),
    Option(
        "cache_bytes", nbytes(), None, "Bound of the local copies of a machine. Default: 16 GiB.",
    ),
    _SHARED["max_shard_batch_bytes"],
    Option("metrics", _NAME, "dedup", _METRICS),
    Option(
        "accept",
        words(f"[0-9a-f]{{12}}|{CLOCK_JUMP}", "be a word that an error names, or 'clock-jump'."),
        (), "What to accept, as words that errors name.",
    ),
)  # fmt: skip

#: The options of `dedup_by_sequence`, by name.
BY_SEQUENCE = by_name(
    Option("producer", _columns(needed=True), REQUIRED, "Who numbers the records."),
    Option("sequence", _COLUMN, REQUIRED, "A record's number."),
    Option("expire_after", duration(1), REQUIRED, "Silence after which a producer is forgotten."),
    Option("epoch", _COLUMN, None, "A number that a producer raises when it starts again at 0."),
    Option("partition", _columns(), (), "What a producer numbers its records within."),
    _SHARED["timestamp"],
    _SHARED["source_partition"],
    _SHARED["heartbeat"],
    Option("gaps", choice(*HANDLINGS), "emit", "New records that are out of order."),
    Option("unknown", choice(*HANDLINGS), "emit", "Records that may be new or not."),
    Option("fenced", choice(*HANDLINGS), "drop", "Records of an epoch that a newer one ended."),
    Option("unnumbered", choice(*HANDLINGS), "emit", "Records without a number."),
    _SHARED["null_timestamps"],
    _SHARED["verdict"],
    _SHARED["idle_timeout"],
    _SHARED["max_future"],
    Option("ranges", whole(1, MOST_RANGES), RANGES, "Ranges of numbers that are remembered."),
    # The metrics report this number in 64 bits.
    Option("max_producers", whole(1, (1 << 63) - 1), 100_000, "Producers that a shard remembers."),
    _SHARED["shards"],
    _SHARED["max_shard_batch_bytes"],
    Option("metrics", _NAME, "dedup_sequence", _METRICS),
    Option(
        "accept", words(CLOCK_JUMP, f"be '{CLOCK_JUMP}'."), (),
        "What to accept, as words that errors name.",
    ),
)  # fmt: skip


def _as_given(value: Any) -> Any:
    """Return an option's value as users write it, with a single column instead of a 1-tuple."""
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """Options that the two operators have in common."""

    FUNCTION: ClassVar[str]
    DECLARED: ClassVar[Mapping[str, Option]]

    timestamp: ColumnOrName | IdTime | None
    source_partition: Columns
    heartbeat: ColumnOrName | None
    null_timestamps: NullTimestamps
    verdict: str | None
    idle_timeout: Duration | None
    max_future: Duration
    shards: int | None
    max_shard_batch_bytes: int | str
    metrics: str
    accept: str | tuple[str, ...]

    def _check_each(self) -> None:
        for option in self.DECLARED.values():
            value = option.check(getattr(self, option.name))
            if isinstance(value, tuple):
                object.__setattr__(self, option.name, value)

    def _check_needs_time(self, why: str, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value if isinstance(value, (bool, tuple)) else value is not None:
                raise ConfigError(
                    f"{name}={_as_given(value)!r} needs a timestamp column; without `timestamp` "
                    f"{why}"
                )

    def checked(self, name: str) -> Any:
        """Return an option's value to use: durations in milliseconds, sizes in bytes."""
        return self.DECLARED[name].check(getattr(self, name))

    def as_call(self) -> str:
        """Return the Python call that made the operator, without options at their defaults."""
        shown = []
        for option in self.DECLARED.values():
            value, default = _as_given(getattr(self, option.name)), option.default
            if option.name == "catalog" and isinstance(value, (str, os.PathLike)):
                value = Root(value).url()  # without credentials
            # A Column's == returns a Column, so the types are compared first.
            if value is not default and (type(value) is not type(default) or value != default):
                shown.append(f"{option.name}={value!r}")
        return f"{self.FUNCTION}({', '.join(shown)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(_Options):
    """The arguments of `dedup_by_id`, checked against each other.

    Raises
    ------
    ConfigError
        If a value cannot work with any DataFrame.
    """

    FUNCTION = "dedup_by_id"
    DECLARED = BY_ID

    id: tuple[ColumnOrName | DerivedId, ...]
    horizon: Duration
    catalog: str | os.PathLike[str] | FileSystemFactory | None = field(repr=False)
    lateness: Duration | None
    late: Late
    window_delay: Duration | None
    stable_timestamps: bool
    null_ids: NullIds
    order_by: Columns
    guarantee: Guarantee
    check_payload: bool | Columns
    conflicts: Conflicts
    bucket_length: Duration | None
    fpr: float
    state_budget_bytes: int | str
    filter_state_bytes: int | str | None
    max_live_ids: int | None
    keep_expired: Duration
    shared_local: bool
    cache_dir: str | None
    cache_bytes: int | str | None
    root: Root | None = field(init=False)

    def __post_init__(self) -> None:
        self._check_each()
        if self.timestamp is None:
            why = "a record's time is its arrival, and no record is late."
            timed = ("lateness", "window_delay", "source_partition", "heartbeat")
            self._check_needs_time(why, *timed, "stable_timestamps")
        policy = self.policy()
        if policy.lateness_ms > policy.horizon_ms:
            warnings.warn(
                f"lateness={self.lateness!r} is longer than the horizon "
                f"({format_ms(policy.horizon_ms)}). The operator then remembers every ID for both "
                "together, but only copies within the horizon of each other are duplicates. If "
                "copies may come that far apart, give a longer horizon.",
                DedupWarning,
                stacklevel=4,
            )
        if self.window_delay is not None and self.late == "emit":
            raise ConfigError(
                f'window_delay={self.window_delay!r} needs late="drop": late="emit" passes late '
                "records on, and the window drops them silently. To see them, add verdict=."
            )
        if self.guarantee == "at-most-once":
            warnings.warn(
                'guarantee="at-most-once" lets the filters alone decide, and they are sized for '
                f"fpr={self.fpr:g}: of every {round(1 / self.fpr):,} records with a new ID, up to "
                "one is dropped as a duplicate although it is new. Choose a lower fpr, or "
                '"exactly-once", which looks each hit up in the catalog and drops none.',
                DedupWarning,
                stacklevel=4,
            )
        if self.guarantee == "at-least-once" and self.max_live_ids is not None:
            raise ConfigError(
                f"max_live_ids={self.max_live_ids} has no effect under "
                'guarantee="at-least-once", which remembers no ID. Leave out one of both.'
            )
        if self.check_payload is False and self.conflicts != "drop":
            raise ConfigError(
                f"conflicts={self.conflicts!r} needs check_payload: without it nothing compares "
                "the copies of a record."
            )
        if self.check_payload is not False and self.guarantee != "exactly-once":
            raise ConfigError(
                f'guarantee="{self.guarantee}" does not read the catalog, which holds the payloads '
                "to compare with. Leave out check_payload or guarantee."
            )
        if self.cache_dir is not None:
            check_local(self.cache_dir, "cache_dir")
        object.__setattr__(self, "root", None if self.catalog is None else Root(self.catalog))

    @property
    def handling(self) -> Handling:
        """Return which verdicts' rows pass, are dropped or stop the query."""
        return Handling.of(self)

    def policy(self) -> Policy:
        horizon_ms, filter_bytes = self.checked("horizon"), self.checked("filter_state_bytes")
        event_time = self.timestamp is not None
        lateness_ms = self.checked("lateness") if event_time else 0
        if lateness_ms is None:
            lateness_ms = default_lateness_ms(horizon_ms, stable_timestamps=self.stable_timestamps)
        return Policy(
            horizon_ms=horizon_ms,
            bucket_ms=self._bucket_ms(horizon_ms),
            event_time=event_time,
            lateness_ms=lateness_ms,
            late=self.late,
            window_delay_ms=self.checked("window_delay"),
            stable_timestamps=self.stable_timestamps,
            idle_timeout_ms=self.checked("idle_timeout"),
            fpr=self.fpr,
            state_budget_bytes=self.checked("state_budget_bytes"),
            max_filter_state_bytes=FILTER_STATE_BYTES if filter_bytes is None else filter_bytes,
            filters_by_load=filter_bytes is None,
            keep_expired_ms=self.checked("keep_expired"),
            accept_clock_jump=CLOCK_JUMP in self.accept,
            guarantee=self.guarantee,
            max_live_ids=self.max_live_ids,
        )

    def _bucket_ms(self, horizon_ms: int) -> int:
        bucket_ms: int | None = self.checked("bucket_length")
        if bucket_ms is None:
            return -(-horizon_ms // BUCKETS)
        if bucket_ms > horizon_ms:
            raise ConfigError(
                f"bucket_length={self.bucket_length!r} must be at most the horizon "
                f"({format_ms(horizon_ms)}): an ID may occur only once in a bucket."
            )
        if -(-horizon_ms // bucket_ms) > MAX_BUCKETS:
            raise ConfigError(
                f"bucket_length={self.bucket_length!r} makes more than {MAX_BUCKETS} buckets per "
                f"horizon ({format_ms(horizon_ms)}), and every lookup probes them all. Make it "
                "longer."
            )
        return bucket_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceOptions(_Options):
    """The arguments of `dedup_by_sequence`. Raises what `Options` raises."""

    FUNCTION = "dedup_by_sequence"
    DECLARED = BY_SEQUENCE

    producer: Columns
    sequence: ColumnOrName
    expire_after: Duration
    epoch: ColumnOrName | None
    partition: Columns
    gaps: SequenceHandling
    unknown: SequenceHandling
    fenced: SequenceHandling
    unnumbered: SequenceHandling
    ranges: int
    max_producers: int

    def __post_init__(self) -> None:
        self._check_each()
        if isinstance(self.timestamp, IdTime):
            raise ConfigError(
                "timestamp=time_from_id(...) reads the ID of dedup_by_id, but records of "
                "dedup_by_sequence have none. Give a timestamp column, or none."
            )
        if self.timestamp is None:
            why = "producers expire by the time of the micro-batches."
            self._check_needs_time(why, "source_partition", "heartbeat")

    @property
    def handling(self) -> Handling:
        """Return what becomes of rows without a timestamp. `rule` decides about other rows."""
        return Handling(null_timestamps=self.null_timestamps, verdict=self.verdict)

    def policy(self) -> Policy:
        expire_ms = self.checked("expire_after")
        return Policy(
            horizon_ms=expire_ms,
            bucket_ms=expire_ms,
            event_time=self.timestamp is not None,
            idle_timeout_ms=self.checked("idle_timeout"),
            accept_clock_jump=CLOCK_JUMP in self.accept,
        )

    def rule(self) -> SequenceRule:
        return SequenceRule(**{f.name: getattr(self, f.name) for f in fields(SequenceRule)})

"""The operator's options, checked against each other before they meet a DataFrame."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import timedelta
from inspect import signature
from typing import Literal, TypeAlias, TypeVar

from pyspark.sql import Column

from dedup.catalog.location import FileSystemFactory
from dedup.catalog.root import Root
from dedup.catalog.uri import check_local
from dedup.core.admission import Conflicts
from dedup.core.duration import duration_ms, format_ms
from dedup.core.option_rules import check_buckets, check_fpr, check_least, choice, positive_ms
from dedup.core.policy import (
    CONFLICTS,
    GUARANTEES,
    LATE,
    MAX_BUCKETS,
    MIN_BUDGET_BYTES,
    NULL_IDS,
    NULL_TIMESTAMPS,
    Guarantee,
    Policy,
    default_lateness_ms,
)
from dedup.errors import ConfigError, DedupWarning
from dedup.spark.driver.derived_id import DerivedId
from dedup.spark.idtime import IdTime

ColumnOrName: TypeAlias = str | Column
_Duration: TypeAlias = str | timedelta
ColumnsOption: TypeAlias = ColumnOrName | Sequence[ColumnOrName]

_One = TypeVar("_One", str | Column, str | Column | DerivedId)
_WHOLE_NUMBERS = (
    "buckets", "shards", "state_budget_bytes", "cache_bytes", "max_shard_batch_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments of `dedup_by_id`, checked against each other.

    Raises
    ------
    ConfigError
        If a value cannot work whatever it is applied to.
    """

    id: ColumnOrName | DerivedId | Sequence[ColumnOrName | DerivedId]
    horizon: _Duration
    catalog: str | os.PathLike[str] | FileSystemFactory | None = field(repr=False)
    timestamp: ColumnOrName | IdTime | None
    source_partition: ColumnsOption
    lateness: _Duration | None
    late: Literal["emit", "drop"]
    stable_timestamps: bool
    max_future: _Duration
    null_ids: Literal["emit", "drop", "error"]
    null_timestamps: Literal["error", "now", "emit", "drop"]
    verdict: str | None
    idle_timeout: _Duration | None
    order_by: ColumnsOption
    guarantee: Guarantee
    check_payload: bool | ColumnsOption
    conflicts: Conflicts
    shards: int | None
    buckets: int
    bucket_length: _Duration | None
    fpr: float
    state_budget_bytes: int
    keep_expired: _Duration
    accept_clock_jump: bool
    shared_local: bool
    cache_dir: str | None
    cache_bytes: int | None
    max_shard_batch_bytes: int
    metrics: str
    accept_changed_id: str | None
    accept_changed_timestamp: str | None
    root: Root | None = field(init=False)

    def __post_init__(self) -> None:
        self._check_kinds()
        self._check_numbers()
        self._check_names()
        if self.timestamp is None:
            self._check_processing_time()
        self._check_lateness()
        self._check_guarantee()
        self._check_payload()
        duration_ms(self.max_future, option="max_future")
        if self.cache_dir is not None:
            check_local(self.cache_dir, "cache_dir")
        object.__setattr__(self, "root", None if self.catalog is None else Root(self.catalog))

    def _check_kinds(self) -> None:
        choice("late", self.late, LATE)
        choice("conflicts", self.conflicts, CONFLICTS)
        choice("guarantee", self.guarantee, GUARANTEES)
        choice("null_ids", self.null_ids, NULL_IDS)
        choice("null_timestamps", self.null_timestamps, NULL_TIMESTAMPS)
        for option in _WHOLE_NUMBERS:
            value = getattr(self, option)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise ConfigError(f"{option}={value!r} must be a whole number.")
        for option in ("stable_timestamps", "accept_clock_jump", "shared_local"):
            if not isinstance(getattr(self, option), bool):
                raise ConfigError(f"{option}={getattr(self, option)!r} must be True or False.")

    def _check_numbers(self) -> None:
        check_fpr("fpr", self.fpr)
        check_least("state_budget_bytes", self.state_budget_bytes, MIN_BUDGET_BYTES)
        for option in ("cache_bytes", "max_shard_batch_bytes", "shards"):
            check_least(option, getattr(self, option))

    def _check_lateness(self) -> None:
        policy = self.policy()
        if policy.lateness_ms > policy.horizon_ms:
            warnings.warn(
                f"lateness={self.lateness!r} is longer than the horizon "
                f"({format_ms(policy.horizon_ms)}). Every ID is then remembered for both together, "
                "yet only copies within the horizon of each other are duplicates. If copies may "
                "come that far apart, a longer horizon is what you need.",
                DedupWarning,
                stacklevel=5,
            )

    def _check_guarantee(self) -> None:
        if self.guarantee == "at-most-once":
            warnings.warn(
                'guarantee="at-most-once" lets the filters alone decide, which are sized for '
                f"fpr={self.fpr:g}: of every {round(1 / self.fpr):,} records with a new ID up to "
                "one is dropped as a duplicate though it is none. Choose a lower fpr, or "
                '"exactly-once", which asks the catalog about each hit and drops none.',
                DedupWarning,
                stacklevel=5,
            )

    def _check_payload(self) -> None:
        if self.check_payload is False:
            if self.conflicts != "drop":
                raise ConfigError(
                    f"conflicts={self.conflicts!r} needs check_payload: without it nobody compares "
                    "the copies of a record."
                )
        elif self.guarantee != "exactly-once":
            raise ConfigError(
                f'guarantee="{self.guarantee}" does not ask the catalog, in which the payloads are '
                "remembered; leave check_payload out, or the guarantee."
            )
        elif self.check_payload is not True and not self.check_payload:
            raise ConfigError("check_payload=[] names no column; True stands for all of them.")

    def _check_names(self) -> None:
        listed = ["id", "source_partition", "order_by"]
        if not isinstance(self.check_payload, bool):
            listed.append("check_payload")
        for option in listed:
            given = getattr(self, option)
            if isinstance(given, (Set, Mapping)):
                raise ConfigError(
                    f"{option}={given!r} has no order that lasts; give the columns as a list."
                )
            # An iterator could be read once only.
            object.__setattr__(self, option, tuple(several(given)))
        if not self.id:
            raise ConfigError("id=[] names no column.")
        texts = ("verdict", "accept_changed_id", "accept_changed_timestamp")
        check_texts({option: getattr(self, option) for option in texts}, self.metrics)

    def _check_processing_time(self) -> None:
        for option in ("lateness", "source_partition", "stable_timestamps"):
            value = getattr(self, option)
            if isinstance(value, tuple) and len(value) == 1:
                (value,) = value
            if isinstance(value, Column) or value:
                raise ConfigError(
                    f"{option}={value!r} needs a timestamp column; without "
                    "`timestamp` records are timed by arrival and none is late."
                )

    def policy(self) -> Policy:
        """Return the rules for the core, with defaults resolved."""
        horizon_ms = positive_ms("horizon", self.horizon)
        event_time = self.timestamp is not None
        lateness_ms = 0
        if event_time and self.lateness is not None:
            lateness_ms = duration_ms(self.lateness, option="lateness")
        elif event_time:
            lateness_ms = default_lateness_ms(horizon_ms, stable_timestamps=self.stable_timestamps)
        idle_ms = (
            None
            if self.idle_timeout is None
            else duration_ms(self.idle_timeout, option="idle_timeout")
        )
        return Policy(
            horizon_ms=horizon_ms,
            bucket_ms=self._bucket_ms(horizon_ms),
            event_time=event_time,
            lateness_ms=lateness_ms,
            late=self.late,
            stable_timestamps=self.stable_timestamps,
            idle_timeout_ms=idle_ms,
            fpr=self.fpr,
            state_budget_bytes=self.state_budget_bytes,
            keep_expired_ms=duration_ms(self.keep_expired, option="keep_expired"),
            accept_clock_jump=self.accept_clock_jump,
            guarantee=self.guarantee,
        )

    def _bucket_ms(self, horizon_ms: int) -> int:
        if self.bucket_length is None:
            check_buckets("buckets", self.buckets)
            return -(-horizon_ms // self.buckets)
        bucket_ms = duration_ms(self.bucket_length, option="bucket_length")
        if not 1 <= bucket_ms <= horizon_ms:
            raise ConfigError(
                f"bucket_length={self.bucket_length!r} must be at least a millisecond and at most "
                f"the horizon ({format_ms(horizon_ms)}): an ID may occur only once in a bucket."
            )
        if -(-horizon_ms // bucket_ms) > MAX_BUCKETS:
            raise ConfigError(
                f"bucket_length={self.bucket_length!r} makes more than {MAX_BUCKETS} buckets per "
                f"horizon ({format_ms(horizon_ms)}); every lookup probes them all. Make it longer."
            )
        return bucket_ms


def check_texts(texts: Mapping[str, object], metrics: object) -> None:
    """Refuse what is no text, by the option's name, and a name for the figures that is none."""
    for option, value in texts.items():
        if value is not None and not (isinstance(value, str) and value):
            raise ConfigError(f"{option}={value!r} must be text that is not empty, or None.")
    if not (isinstance(metrics, str) and metrics):
        raise ConfigError(
            f"metrics={metrics!r} must be a name; the query's figures are found under it."
        )


def several(given: _One | Sequence[_One]) -> Iterator[_One]:
    """Yield the columns of an option that takes one or more."""
    if isinstance(given, Iterable) and not isinstance(given, (str, Column)):
        yield from given
    else:
        yield given


def as_call(function: Callable[..., object], options: object) -> str:
    """Return how an operator was made: the options that are not a function's defaults."""
    told = []
    for name, parameter in signature(function).parameters.items():
        value, default = getattr(options, name), parameter.default
        if isinstance(value, tuple) and len(value) == 1:
            (value,) = value
        if name == "catalog" and isinstance(value, (str, os.PathLike)):
            value = Root(value).url()  # without credentials
        # A Column's == is no comparison.
        if value is not default and (type(value) is not type(default) or value != default):
            told.append(f"{name}={value!r}")
    return f"{function.__name__}({', '.join(told)})"

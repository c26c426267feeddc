"""From the user's options to Spark's plan: everything that is checked before a query starts."""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.streaming.state import GroupStateTimeout

from dedup.catalog.definition import Definition
from dedup.catalog.fit import Accepted
from dedup.catalog.root import FileSystemFactory, Root
from dedup.catalog.uri import check_local
from dedup.core.duration import duration_ms, format_ms
from dedup.core.policy import (
    MAX_BUCKETS,
    MIN_BUDGET_BYTES,
    MIN_FPR,
    Policy,
    default_lateness_ms,
)
from dedup.errors import ConfigError, DedupWarning
from dedup.spark import versions
from dedup.spark.driver import checks, columns
from dedup.spark.driver.shipping import shipped
from dedup.spark.executor import wire
from dedup.spark.executor.group import OUTPUT_SCHEMA, STATE_SCHEMA, dedup_batch, dedup_stream
from dedup.spark.executor.pack import pack
from dedup.spark.executor.unpack import unpack
from dedup.spark.idtime import IdTime
from dedup.spark.mount_probe import mark_start
from dedup.spark.observations import observations, pack_name, pack_observation
from dedup.spark.plan import Plan

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

ColumnOrName: TypeAlias = str | Column
_Duration: TypeAlias = str | timedelta
_Columns: TypeAlias = ColumnOrName | Sequence[ColumnOrName]

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

    id: _Columns
    horizon: _Duration
    catalog: str | os.PathLike[str] | FileSystemFactory | None
    timestamp: ColumnOrName | IdTime | None
    source_partition: _Columns
    lateness: _Duration | None
    late: Literal["emit", "drop"]
    stable_timestamps: bool
    max_future: _Duration
    null_ids: Literal["emit", "drop", "error"]
    null_timestamps: Literal["error", "now", "emit", "drop"]
    verdict: str | None
    idle_timeout: _Duration | None
    order_by: _Columns
    shards: int | None
    buckets: int
    bucket_length: _Duration | None
    fpr: float
    state_budget_bytes: int
    keep_expired: _Duration
    accept_clock_jump: bool
    shared_local: bool
    cache_dir: str | None
    cache_bytes: int
    max_shard_batch_bytes: int
    metrics: str
    accept_changed_id: str | None
    accept_changed_timestamp: str | None
    root: Root | None = field(init=False)

    def __post_init__(self) -> None:
        for option, values in (
            ("late", ("emit", "drop")),
            ("null_ids", ("emit", "drop", "error")),
            ("null_timestamps", ("error", "now", "emit", "drop")),
        ):
            if getattr(self, option) not in values:
                known = ", ".join(map(repr, values))
                raise ConfigError(f"{option}={getattr(self, option)!r} must be one of {known}.")
        for option in _WHOLE_NUMBERS:
            value = getattr(self, option)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise ConfigError(f"{option}={value!r} must be a whole number.")
        for option in ("stable_timestamps", "accept_clock_jump", "shared_local"):
            if not isinstance(getattr(self, option), bool):
                raise ConfigError(f"{option}={getattr(self, option)!r} must be True or False.")
        if not isinstance(self.fpr, (int, float)) or not MIN_FPR <= self.fpr < 1:
            raise ConfigError(
                f"fpr={self.fpr!r} must lie between 0 and 1, from {MIN_FPR:g} on; 0.01 is usual, "
                "and a false positive only costs a read."
            )
        for option, least in (
            ("state_budget_bytes", MIN_BUDGET_BYTES),
            ("cache_bytes", 1),
            ("max_shard_batch_bytes", 1),
            ("shards", 1),
        ):
            value = getattr(self, option)
            if value is not None and value < least:
                raise ConfigError(f"{option}={value} must be at least {least}.")
        self._check_names()
        if self.timestamp is None:
            self._check_processing_time()
        policy = self.policy()
        if policy.lateness_ms > policy.horizon_ms:
            warnings.warn(
                f"lateness={self.lateness!r} is longer than the horizon "
                f"({format_ms(policy.horizon_ms)}). Every ID is then remembered for both together, "
                "yet only copies within the horizon of each other are duplicates. If copies may "
                "come that far apart, a longer horizon is what you need.",
                DedupWarning,
                stacklevel=4,
            )
        duration_ms(self.max_future, option="max_future")
        if self.cache_dir is not None:
            check_local(self.cache_dir, "cache_dir")
        object.__setattr__(self, "root", None if self.catalog is None else Root(self.catalog))

    def _check_names(self) -> None:
        for option in ("id", "source_partition", "order_by"):
            given = getattr(self, option)
            if isinstance(given, (Set, Mapping)):
                raise ConfigError(
                    f"{option}={given!r} has no order that lasts; give the columns as a list."
                )
            # An iterator could be read once only.
            object.__setattr__(self, option, tuple(_several(given)))
        if not self.id:
            raise ConfigError("id=[] names no column.")
        for option in ("verdict", "accept_changed_id", "accept_changed_timestamp"):
            value = getattr(self, option)
            if value is not None and not (isinstance(value, str) and value):
                raise ConfigError(f"{option}={value!r} must be text that is not empty, or None.")
        if not (isinstance(self.metrics, str) and self.metrics):
            raise ConfigError(
                f"metrics={self.metrics!r} must be a name; the query's figures are found under it."
            )

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
        """The rules for the core, with defaults resolved."""
        horizon_ms = duration_ms(self.horizon, option="horizon")
        if horizon_ms < 1:
            raise ConfigError(f"horizon={self.horizon!r} must be at least a millisecond.")
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
        )

    def _bucket_ms(self, horizon_ms: int) -> int:
        if self.bucket_length is None:
            if not 1 <= self.buckets <= MAX_BUCKETS:
                raise ConfigError(f"buckets={self.buckets} must be 1 to {MAX_BUCKETS}; 8 is best.")
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


@dataclass(frozen=True, slots=True)
class Operator:
    """A transformation from DataFrame to DataFrame, as `dedup_by_id` makes it."""

    options: Options

    def __call__(self, df: DataFrame) -> DataFrame:
        """The DataFrame de-duplicated.

        Raises
        ------
        ConfigError
            If a column, the session or the query cannot work.
        CatalogError
            If the catalog cannot be written from the driver.
        """
        prepared, plan = prepare(df, self.options)
        return _assemble(prepared, plan, _output_schema(df, self.options), self.options)


def plan_of(df: DataFrame, options: Options) -> Plan:
    """The plan for the tasks, without a look at the catalog; errors as `Operator`."""
    return _plan(df, options, _columns(df, options))


def prepare(df: DataFrame, options: Options) -> tuple[DataFrame, Plan]:
    """Pack's input and the plan for the tasks, after all checks; errors as `Operator`."""
    known = _columns(df, options)
    checks.check_arrow(df.sparkSession)
    if df.isStreaming:
        _check_stream(df, options, known)
    plan = _plan(df, options, known)
    if plan.root is not None and plan.marked:
        mark_start(plan.root, plan.start_id)
    return known.input(), plan


def _columns(df: DataFrame, options: Options) -> columns.Columns:
    case_sensitive = checks.setting(df.sparkSession, "spark.sql.caseSensitive", "false") == "true"
    columns.check_carried(df.schema, case_sensitive=case_sensitive)
    if options.verdict is not None and options.verdict.lower() in map(str.lower, df.columns):
        raise ConfigError(f"verdict={options.verdict!r} is already a column; choose another name.")
    zone = checks.setting(df.sparkSession, "spark.sql.session.timeZone", "UTC")
    ansi = checks.setting(df.sparkSession, "spark.sql.ansi.enabled", "true")
    return columns.Columns(df, case_sensitive, zone, ansi.lower())


def a_stream_needs_a_catalog() -> ConfigError:
    """The error for a stream without the option."""
    return ConfigError(
        "A stream needs catalog=: a path or URI where its memory can live, such as "
        "catalog='s3://bucket/dedup/orders'."
    )


def _check_stream(df: DataFrame, options: Options, known: columns.Columns) -> None:
    if options.root is None:
        raise a_stream_needs_a_catalog()
    spark = df.sparkSession
    versions.check_driver()
    checks.check_settings(spark)
    checks.check_upstream(df, known.steps)
    checks.check_root(spark, options.root, shared_local=options.shared_local)
    checks.check_partitions(spark)


def _plan(df: DataFrame, options: Options, known: columns.Columns) -> Plan:
    # Order expressions come first among the helpers: they alone travel with the rows.
    orders = [known.resolve(column, "order_by") for column in _several(options.order_by)]
    for resolved in orders:
        columns.check_order_type(resolved)
    body_columns = len(df.columns) + len(known.helpers)
    ids = [known.resolve(column, "id") for column in _several(options.id)]
    sources = [known.resolve(c, "source_partition") for c in _several(options.source_partition)]
    for resolved in ids:
        columns.check_id_type(resolved)
    for resolved in sources:
        columns.check_id_type(resolved, "source_partition")
    time_column, time_source, id_time = None, "processing time", None
    time_definition = None
    if isinstance(options.timestamp, IdTime):
        if len(ids) != 1 or not isinstance(ids[0].kind, T.StringType):
            raise ConfigError("time_from_id('uuid7') needs an ID of one string column.")
        id_time = options.timestamp.scheme
        time_source = f"{id_time} in the record ID"
    elif options.timestamp is not None:
        resolved = known.resolve(options.timestamp, "timestamp")
        columns.check_time_type(resolved)
        time_column = resolved.column
        time_source = f"column {resolved.name} {resolved.kind.simpleString()}"
        time_definition = resolved.definition
    spark = df.sparkSession
    partitions = int(checks.setting(spark, "spark.sql.shuffle.partitions", "200"))
    policy = options.policy()
    return Plan(
        id_columns=tuple((r.column, r.name, r.kind.simpleString()) for r in ids),
        id_definitions=tuple(r.definition for r in ids),
        time_column=time_column,
        time_source=time_source,
        time_definition=time_definition or Definition(expression=time_source, kind=""),
        accepted=Accepted(options.accept_changed_id, options.accept_changed_timestamp),
        id_time=id_time,
        now_column=known.add(F.current_timestamp()) if policy.event_time else None,
        source_columns=tuple(r.column for r in sources),
        order_columns=tuple(r.column for r in orders),
        user_columns=len(df.columns),
        body_columns=body_columns,
        null_ids=options.null_ids,
        null_timestamps=options.null_timestamps,
        max_future_ms=duration_ms(options.max_future, option="max_future"),
        shards=options.shards if df.isStreaming else options.shards or partitions,
        verdict_column=options.verdict,
        policy=replace(
            checks.with_retention(spark, policy), source_columns=tuple(r.name for r in sources)
        ),
        root=options.root if df.isStreaming else None,
        cache_dir=options.cache_dir,
        cache_bytes=options.cache_bytes,
        max_shard_batch_bytes=options.max_shard_batch_bytes,
        start_id=str(uuid.uuid4()),
        marked=df.isStreaming and options.root is not None and checks.is_mount(spark, options.root),
    )


def _output_schema(df: DataFrame, options: Options) -> T.StructType:
    fields = list(df.schema.fields)
    if options.verdict is not None:
        fields.append(T.StructField(options.verdict, T.StringType(), nullable=False))
    return T.StructType(fields)


def _assemble(df: DataFrame, plan: Plan, output: T.StructType, options: Options) -> DataFrame:
    load_plan, load_pack, load_unpack = shipped(plan), shipped(pack), shipped(unpack)
    load_stream, load_batch = shipped(dedup_stream), shipped(dedup_batch)

    # Spark pickles these by value; what they named of this package would be looked up before
    # anything of ours runs.
    def pack_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return load_pack()(load_plan(), batches)

    def unpack_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return load_unpack()(load_plan(), batches)

    def on_stream(key: Any, frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        return load_stream()(load_plan(), key, frames, state)

    def on_batch(key: Any, frame: pd.DataFrame) -> pd.DataFrame:
        return load_batch()(load_plan(), key, frame)

    sent = df.mapInArrow(pack_rows, wire.SENT_SCHEMA)
    packed = sent.observe(pack_name(options.metrics), pack_observation()).drop("pack_us")
    shards = packed.groupBy("shard")
    if plan.streaming:
        judged = shards.applyInPandasWithState(
            on_stream, OUTPUT_SCHEMA, STATE_SCHEMA, "append", GroupStateTimeout.NoTimeout
        )
    else:
        judged = shards.applyInPandas(on_batch, OUTPUT_SCHEMA)
    return judged.observe(options.metrics, *observations()).mapInArrow(unpack_rows, output)


def _several(given: _Columns) -> Iterator[ColumnOrName]:
    if isinstance(given, Iterable) and not isinstance(given, (str, Column)):
        yield from given
    else:
        yield given

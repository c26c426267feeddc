"""The three passes of an operator, built from the user's options and a DataFrame."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.streaming.state import GroupStateTimeout

from dedup.catalog.certificate import SECRET_BYTES
from dedup.catalog.compatibility import Accepted
from dedup.catalog.definition import Definition, name_of_columns
from dedup.core.admission import EVERY_VERDICT, GOES_ON
from dedup.core.metrics import VERDICTS
from dedup.core.policy import Policy
from dedup.errors import ConfigError
from dedup.spark import versions
from dedup.spark.driver import checks, columns
from dedup.spark.driver.derived_id import ColumnOrName
from dedup.spark.driver.shipping import shipped
from dedup.spark.driver.stream_sources import check_clusters
from dedup.spark.executor import wire
from dedup.spark.executor.group import OUTPUT_SCHEMA, dedup_batch, dedup_stream
from dedup.spark.executor.pack import pack
from dedup.spark.executor.shell import STATE_SCHEMA
from dedup.spark.executor.unpack import unpack
from dedup.spark.idtime import IdTime
from dedup.spark.machine import shuffle_partitions
from dedup.spark.mount_probe import mark_start
from dedup.spark.observations import observations, pack_name, pack_observation
from dedup.spark.options import Options, SequenceOptions
from dedup.spark.plan import Bodies, Plan

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    #: A pass over the rows of one task.
    MapPass: TypeAlias = Callable[[Plan, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Operator:
    """The transformation from DataFrame to DataFrame that `dedup_by_id` returns."""

    options: Options

    def __repr__(self) -> str:
        return self.options.as_call("dedup_by_id")

    def __call__(self, df: DataFrame) -> DataFrame:
        """Return the DataFrame de-duplicated; ConfigError or CatalogError if it cannot work."""
        prepared, plan = prepare(df, self.options)
        output = output_schema(df, self.options)
        return assemble(prepared, plan, self.options.metrics, output=output, group=by_id())


def plan_of(df: DataFrame, options: Options) -> Plan:
    """Return the plan for the tasks, without access to the catalog; errors as `Operator`."""
    return _plan(df, options, user_columns(df, options.verdict))


def prepare(df: DataFrame, options: Options) -> tuple[DataFrame, Plan]:
    """Return pack's input and the plan for the tasks, after all checks; errors as `Operator`."""
    resolver = user_columns(df, options.verdict)
    checks.check_workers(df.sparkSession)
    if df.isStreaming:
        _check_stream(df, options, resolver)
    plan = _plan(df, options, resolver)
    if plan.root is not None and plan.marked:
        mark_start(plan.root, plan.start_id)
    return resolver.input(), plan


def user_columns(df: DataFrame, verdict: str | None) -> columns.Columns:
    """Return the stream's columns for options to name; ConfigError if Python cannot take them."""
    case_sensitive = checks.setting(df.sparkSession, "spark.sql.caseSensitive", "false") == "true"
    columns.check_carried(df.schema, case_sensitive=case_sensitive)
    if verdict is not None and verdict.lower() in map(str.lower, df.columns):
        raise ConfigError(f"verdict={verdict!r} is already a column; choose another name.")
    zone = checks.setting(df.sparkSession, "spark.sql.session.timeZone", "UTC")
    ansi = checks.setting(df.sparkSession, "spark.sql.ansi.enabled", "true")
    return columns.Columns(df, case_sensitive, zone, ansi.lower())


def a_stream_needs_a_catalog() -> ConfigError:
    """Return the error for a stream without the option."""
    return ConfigError(
        "A stream needs catalog=: a path or URI where its memory can live, such as "
        "catalog='s3://bucket/dedup/orders'."
    )


def _check_stream(df: DataFrame, options: Options, resolver: columns.Columns) -> None:
    if options.root is None:
        raise a_stream_needs_a_catalog()
    check_session(df, resolver, "dedup_by_id", options.shards)
    checks.check_root(df.sparkSession, options.root, shared_local=options.shared_local)


def check_session(
    df: DataFrame, resolver: columns.Columns, operator: str, shards: int | None = None
) -> None:
    """Reject a stream or session in which the operator would not work."""
    versions.check_driver()
    checks.check_settings(df.sparkSession)
    checks.check_upstream(df, resolver.steps, operator)
    checks.check_partitions(df.sparkSession, shards)


def batch_shards(spark: SparkSession) -> int:
    """Return the number of shards of a batch query: any number gives the same answer."""
    return shuffle_partitions(checks.setting(spark, checks.PARTITIONS, "")) or 200


@dataclass(frozen=True, slots=True)
class TimeSource:
    """Where timestamps come from, as the fields of `Plan` say."""

    text: str
    definition: Definition
    column: str | None = None
    id_time: Literal["uuid7"] | None = None


def time_source(
    given: ColumnOrName | IdTime | None,
    resolver: columns.Columns,
    ids: Sequence[columns.Resolved] = (),
) -> TimeSource:
    """Return what the option `timestamp` refers to; ConfigError if it is not a timestamp."""
    if given is None:
        text = "processing time"
        return TimeSource(text, Definition(expression=text, kind=""))
    if isinstance(given, IdTime):
        if len(ids) != 1 or not isinstance(ids[0].kind, T.StringType):
            raise ConfigError("time_from_id('uuid7') needs an ID of one string column.")
        text = f"{given.scheme} in the record ID"
        definition = Definition(expression=text, kind="")
        return TimeSource(text, definition, id_time=given.scheme)
    resolved = resolver.resolve(given, "timestamp")
    columns.check_time_type(resolved)
    text = f"column {resolved.name} {resolved.kind.simpleString()}"
    return TimeSource(text, resolved.definition, resolved.column)


def _plan(df: DataFrame, options: Options, resolver: columns.Columns) -> Plan:
    # Order expressions come first among the helpers: they alone travel with the rows.
    orders = resolver.each(options.order_by, "order_by", columns.check_order_type)
    body_columns = len(df.columns) + len(resolver.helpers)
    ids = resolver.each(options.id, "id", columns.check_id_type)
    sources = resolver.each(options.source_partition, "source_partition", columns.check_id_type)
    check_clusters(df, id=ids, source_partition=sources)
    time = time_source(options.timestamp, resolver, ids)
    payload = _payload(options, resolver, {time.column, *(r.column for r in (*ids, *sources))})
    spark, root = df.sparkSession, options.root if df.isStreaming else None
    policy = replace(
        checks.with_retention(spark, options.policy()),
        payload=name_of_columns([r.definition for r in payload]) if payload else None,
    )
    return shared_plan(
        df,
        options,
        resolver,
        policy,
        ids=ids,
        sources=sources,
        time=time,
        emitted=options.handling.emitted,
        accepted=Accepted(options.accept_changed_id, options.accept_changed_timestamp),
        order_columns=tuple(r.column for r in orders),
        body_columns=body_columns,
        shards=options.shards if df.isStreaming else options.shards or batch_shards(spark),
        root=root,
        cache_dir=options.cache_dir,
        cache_bytes=options.cache_bytes,
        payload_columns=tuple(r.column for r in payload),
        marked=root is not None and checks.is_mount(spark, root),
    )


def shared_plan(
    df: DataFrame,
    options: Options | SequenceOptions,
    resolver: columns.Columns,
    policy: Policy,
    *,
    ids: Sequence[columns.Resolved],
    sources: Sequence[columns.Resolved],
    time: TimeSource,
    **others: Any,
) -> Plan:
    """Return a plan with the fields that both operators resolve in the same way, and others."""
    return Plan(
        id_columns=tuple((r.column, r.name, r.kind.simpleString()) for r in ids),
        id_definitions=tuple(r.definition for r in ids),
        time_column=time.column,
        time_source=time.text,
        time_definition=time.definition,
        id_time=time.id_time,
        now_column=resolver.add(F.current_timestamp()) if policy.event_time else None,
        source_columns=tuple(r.column for r in sources),
        user_columns=len(df.columns),
        handling=options.handling,
        max_future_ms=options.max_future_ms,
        policy=replace(policy, source_columns=tuple(r.name for r in sources)),
        max_shard_batch_bytes=options.max_shard_batch_bytes,
        start_id=str(uuid.uuid4()),
        secret=secrets.token_bytes(SECRET_BYTES),
        bodies=who_writes_bodies(df),
        **others,
    )


def _payload(
    options: Options, resolver: columns.Columns, others: set[str | None]
) -> list[columns.Resolved]:
    """Return the columns of the payload, in an order that does not depend on the user's."""
    given = options.check_payload
    if given is False:
        return []
    found = resolver.each(resolver.df.columns if given is True else given, "check_payload")
    if given is True:
        found = [resolved for resolved in found if resolved.column not in others]
        if not found:
            raise ConfigError(
                "check_payload=True: the stream has only the columns of ID, timestamp and source "
                "partition, so there is nothing to compare."
            )
    return sorted(found, key=lambda resolved: repr(resolved.definition))


def who_writes_bodies(df: DataFrame) -> Bodies:
    """Return the pass that writes the rows to a file; see `dedup.spark.executor.bodies`."""
    spark = df.sparkSession
    # Spark may read a batch's rows at any time, or never. If it encrypts its local files, rows must
    # not be there in plain text.
    is_encrypted = checks.setting(spark, "spark.io.encryption.enabled", "false").lower() == "true"
    if not df.isStreaming or is_encrypted:
        return "none"
    return "group" if checks.local_cores(spark) is None else "pack"


def output_schema(df: DataFrame, options: Options) -> T.StructType:
    """Return the columns of the rows that leave the operator."""
    return with_verdict(df, options.verdict, options.handling.emitted, VERDICTS)


def with_verdict(
    df: DataFrame, name: str | None, emitted: Iterable[str], verdicts: Iterable[str]
) -> T.StructType:
    """Return the columns, with a column for verdicts if it has a name."""
    fields = list(df.schema.fields)
    if name is not None:
        metadata = {GOES_ON: sorted(emitted), EVERY_VERDICT: list(verdicts)}
        fields.append(T.StructField(name, T.StringType(), False, metadata))
    return T.StructType(fields)


@dataclass(frozen=True, slots=True)
class GroupPass:
    """The second pass of an operator."""

    #: Functions of (Plan, key, frames, state) and of (Plan, key, frame).
    stream: Callable[..., Iterator[pd.DataFrame]]
    batch: Callable[..., pd.DataFrame]
    #: Schema of the output as DDL, and the aggregates over it.
    output: str
    observations: Callable[[], list[Column]]


def by_id() -> GroupPass:
    """Return the second pass of `dedup_by_id`."""
    return GroupPass(dedup_stream, dedup_batch, OUTPUT_SCHEMA, observations)


def assemble(
    df: DataFrame,
    plan: Plan,
    metrics: str,
    *,
    output: T.StructType | str,
    group: GroupPass,
    first: MapPass | None = None,
    last: MapPass | None = None,
) -> DataFrame:
    """Return the DataFrame behind the three passes.

    Parameters
    ----------
    df : DataFrame
        Input of the first pass.
    plan : Plan
    metrics : str
        Name of the observation.
    output : StructType or DDL
        Columns that the last pass returns.
    group : GroupPass
        The second pass.
    first, last : callable of (Plan, iterator of record batches), optional
        Default: `pack` and `unpack`.
    """
    load_plan, load_first, load_last = (
        shipped(plan),
        shipped(first or pack),
        shipped(last or unpack),
    )
    load_stream, load_batch = shipped(group.stream), shipped(group.batch)

    # Spark pickles these functions by value. If they named anything of this package, the executor
    # would look it up before any code of ours runs.
    def pack_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return load_first()(load_plan(), batches)

    def unpack_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return load_last()(load_plan(), batches)

    def on_stream(key: Any, frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        return load_stream()(load_plan(), key, frames, state)

    def on_batch(key: Any, frame: pd.DataFrame) -> pd.DataFrame:
        return load_batch()(load_plan(), key, frame)

    sent = df.mapInArrow(pack_rows, wire.SENT_SCHEMA)
    packed = sent.observe(pack_name(metrics), pack_observation()).drop("pack_us")
    shards = packed.groupBy("shard")
    if plan.streaming:
        judged = shards.applyInPandasWithState(
            on_stream, group.output, STATE_SCHEMA, "append", GroupStateTimeout.NoTimeout
        )
    else:
        judged = shards.applyInPandas(on_batch, group.output)
    return judged.observe(metrics, *group.observations()).mapInArrow(unpack_rows, output)

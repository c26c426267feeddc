"""Makes the plan for the tasks from the user's options and a DataFrame."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from dedup.catalog.certificate import SECRET_BYTES
from dedup.catalog.definition import Definition, encoded_kind, name_of_columns
from dedup.errors import ConfigError
from dedup.spark.driver import checks
from dedup.spark.driver.columns import (
    ColumnOrName,
    Columns,
    Resolved,
    check_carried,
    check_id_type,
    check_order_type,
    check_time_type,
    check_whole,
)
from dedup.spark.driver.stream_sources import check_clusters
from dedup.spark.idtime import IdTime
from dedup.spark.machine import shuffle_partitions
from dedup.spark.options import Options, SequenceOptions
from dedup.spark.plan import Bodies, Numbering, Plan, TimeSource

_NOTHING = Definition(expression="", kind="")


def user_columns(df: DataFrame, options: Options | SequenceOptions) -> Columns:
    """Return the columns of a DataFrame, in which the operator's options can be resolved."""
    verdict = options.verdict
    case_sensitive = checks.setting(df.sparkSession, "spark.sql.caseSensitive", "false") == "true"
    check_carried(df.schema)
    if verdict is not None and verdict.lower() in map(str.lower, df.columns):
        raise ConfigError(f"verdict={verdict!r} is already a column; choose another name.")
    zone = checks.time_zone(df.sparkSession)
    ansi = checks.setting(df.sparkSession, "spark.sql.ansi.enabled", "true")
    return Columns(df, case_sensitive, zone, ansi.lower())


def plan_of(columns: Columns, options: Options | SequenceOptions) -> Plan:
    """Return the plan for the tasks, and add the helper columns that the plan names.

    This does not access the catalog. Raises the ConfigError that `Operator` raises.
    """
    if isinstance(options, SequenceOptions):
        return _by_sequence(columns, options)
    return _by_id(columns, options)


def _by_id(columns: Columns, options: Options) -> Plan:
    df = columns.df
    # Order expressions are the first helper columns, because only they travel with the rows.
    orders = columns.each(options.order_by, "order_by", check_order_type)
    body_columns = len(df.columns) + len(columns.helpers)
    ids = columns.each(options.id, "id", check_id_type)
    sources = columns.each(options.source_partition, "source_partition", check_id_type)
    check_clusters(df, id=ids, source_partition=sources)
    time = _time_source(columns, options.timestamp, ids)
    heartbeat = _heartbeat(columns, options)
    others = {time.column, heartbeat, *(r.column for r in (*ids, *sources))}
    payload = _payload(columns, options, others)
    policy = options.policy()
    root = options.root if df.isStreaming else None
    retained = int(checks.setting(df.sparkSession, "spark.sql.streaming.minBatchesToRetain", "100"))
    return _plan(
        columns,
        options,
        ids=ids,
        sources=sources,
        time=time,
        heartbeat_column=heartbeat,
        policy=replace(
            policy,
            # Spark ignores the watermark of a batch query.
            window_delay_ms=policy.window_delay_ms if df.isStreaming else None,
            retain_epochs=retained,
            payload=name_of_columns([r.definition for r in payload]) if payload else None,
        ),
        emitted=options.handling.emitted,
        accepted=tuple(options.accept),
        order_columns=tuple(r.column for r in orders),
        body_columns=body_columns,
        shards=options.shards or _batch_shards(df),
        root=root,
        cache_dir=options.cache_dir,
        cache_bytes=options.checked("cache_bytes"),
        payload_columns=tuple(r.column for r in payload),
        marked=root is not None and checks.is_mount(df.sparkSession, root),
    )


def _by_sequence(columns: Columns, options: SequenceOptions) -> Plan:
    df = columns.df
    producers = columns.each(options.producer, "producer", check_id_type)
    partitions = columns.each(options.partition, "partition", check_id_type)
    sources = columns.each(options.source_partition, "source_partition", check_id_type)
    check_clusters(df, partition=partitions, source_partition=sources)
    (sequence,) = columns.each((options.sequence,), "sequence", check_whole)
    epoch_columns = () if options.epoch is None else (options.epoch,)
    epochs = columns.each(epoch_columns, "epoch", check_whole)
    time = _time_source(columns, options.timestamp)
    made_of = [
        *(_made_of("producer", r.definition) for r in producers),
        *(_made_of("partition", r.definition) for r in partitions),
        # The types of integer columns may change.
        *([_made_of("epoch", replace(r.definition, kind="")) for r in epochs] or ["no epoch"]),
        _made_of("sequence", replace(sequence.definition, kind="")),
        _made_of("timestamp", time.definition),
    ]
    return _plan(
        columns,
        options,
        ids=[*producers, *partitions],
        sources=sources,
        time=time,
        heartbeat_column=_heartbeat(columns, options),
        policy=options.policy(),
        emitted=options.rule().emitted(untimed=options.null_timestamps == "emit"),
        body_columns=len(df.columns),
        shards=options.shards or _batch_shards(df),
        numbering=Numbering(
            producer_columns=tuple(r.column for r in producers),
            sequence_column=sequence.column,
            epoch_column=epochs[0].column if epochs else None,
            rule=options.rule(),
            made_of=tuple(made_of),
        ),
    )


def _plan(
    columns: Columns,
    options: Options | SequenceOptions,
    *,
    ids: Sequence[Resolved],
    sources: Sequence[Resolved],
    **others: Any,
) -> Plan:
    """Return a plan, given the columns of IDs and clocks. `others` are fields of one operator."""
    policy = replace(others.pop("policy"), source_columns=tuple(r.name for r in sources))
    return Plan(
        id_columns=tuple((r.column, r.name, r.kind.simpleString()) for r in ids),
        id_definitions=tuple(r.definition for r in ids),
        now_column=columns.add(F.current_timestamp()) if policy.event_time else None,
        source_columns=tuple(r.column for r in sources),
        user_columns=len(columns.df.columns),
        handling=options.handling,
        max_future_ms=options.checked("max_future"),
        policy=policy,
        max_shard_batch_bytes=options.checked("max_shard_batch_bytes"),
        start_id=str(uuid.uuid4()),
        secret=secrets.token_bytes(SECRET_BYTES),
        bodies=who_writes_bodies(columns.df),
        streaming=columns.df.isStreaming,
        **others,
    )


def _time_source(
    columns: Columns, timestamp: ColumnOrName | IdTime | None, ids: Sequence[Resolved] = ()
) -> TimeSource:
    if timestamp is not None and not isinstance(timestamp, IdTime):
        resolved = columns.resolve(timestamp, "timestamp")
        check_time_type(resolved)
        text = f"column {resolved.name} {resolved.kind.simpleString()}"
        return TimeSource(text, resolved.definition, resolved.column)
    if timestamp is None:
        text = "processing time"
    else:
        text = timestamp.text
        if len(ids) != 1 or not timestamp.fits(ids[0].kind.simpleString()):
            raise ConfigError(
                f"time_from_id({timestamp.scheme!r}) needs an ID of one string column, or for "
                "'snowflake' of one BIGINT column."
            )
    return TimeSource(text, Definition(expression=text, kind=""), in_id=timestamp)


def _heartbeat(columns: Columns, options: Options | SequenceOptions) -> str | None:
    if options.heartbeat is None:
        return None
    resolved = columns.resolve(options.heartbeat, "heartbeat")
    if not isinstance(resolved.kind, T.BooleanType):
        raise ConfigError(
            f"heartbeat column {resolved.name!r} is {resolved.kind.simpleString()}; a boolean is "
            f"needed, such as F.col({resolved.name!r}) == 'heartbeat'."
        )
    return resolved.column


def _payload(columns: Columns, options: Options, others: set[str | None]) -> list[Resolved]:
    compared = options.check_payload
    if compared is False:
        return []
    payload = columns.each(columns.df.columns if compared is True else compared, "check_payload")
    if compared is True:
        payload = [resolved for resolved in payload if resolved.column not in others]
        if not payload:
            raise ConfigError(
                "check_payload=True: the stream has only the columns of ID, timestamp, source "
                "partition and heartbeat, so there is nothing to compare."
            )
    return sorted(payload, key=lambda resolved: repr(resolved.definition))


def _batch_shards(df: DataFrame) -> int | None:
    """Return the number of shards of a batch query, or None for a stream.

    The result of a batch does not depend on the number. A stream has as many shards as Spark fixed
    state partitions at the stream's first start.
    """
    if df.isStreaming:
        return None
    return shuffle_partitions(checks.setting(df.sparkSession, checks.PARTITIONS, "")) or 200


def who_writes_bodies(df: DataFrame) -> Bodies:
    """Return the pass that writes the rows to a file (see `dedup.spark.executor.bodies`)."""
    spark = df.sparkSession
    # Spark may read a batch's rows at any time, or never. If Spark encrypts its local files, no
    # other local file may hold rows in plain text.
    is_encrypted = checks.setting(spark, "spark.io.encryption.enabled", "false").lower() == "true"
    if not df.isStreaming or is_encrypted:
        return "none"
    return "group" if checks.local_cores(spark) is None else "pack"


def _made_of(option: str, definition: Definition) -> str:
    """Return a text of an option and its column, which a restart compares with the last start."""
    shown = replace(definition, kind=encoded_kind(definition.kind))
    return f"{option}={shown.text_beside(_NOTHING)}"

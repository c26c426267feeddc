"""Lets the shards of a new query learn IDs from a batch DataFrame, in one Spark job."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from dedup.catalog.certificate import Certificate
from dedup.core.sharding import filter_key_id, slot_keys
from dedup.core.state import ShardState
from dedup.errors import ConfigError, DataError, DedupWarning, cause
from dedup.spark import versions
from dedup.spark.driver import checks
from dedup.spark.driver.columns import named_column
from dedup.spark.driver.plans import plan_of, user_columns
from dedup.spark.driver.shipping import shipped
from dedup.spark.executor.history import (
    DATED_ARROW,
    LEARNED_ARROW,
    HistoryPlan,
    learn_history,
    pack_history,
)
from dedup.spark.executor.layout import of_plan
from dedup.spark.machine import shuffle_partitions, wall_clock_ms
from dedup.spark.options import Options
from dedup.spark.plan import Plan
from dedup.values.duration import counted

_ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"


@dataclass(frozen=True, slots=True)
class Learned:
    """What the shards have learned."""

    certificate: Certificate
    #: First state of each shard.
    states: tuple[ShardState, ...]
    rows: int
    too_old: int
    future: int


def prepare_history(history: DataFrame, options: Options) -> tuple[DataFrame, Plan]:
    """Check everything, and return the input of the first pass and the plan for the tasks."""
    spark = history.sparkSession
    if history.isStreaming:
        raise ConfigError("history is a stream. Give a batch DataFrame, as spark.read returns it.")
    if options.guarantee == "at-least-once":
        raise ConfigError('guarantee="at-least-once" remembers no ID, so history is of no use.')
    versions.check_driver()
    options = _needed(history, options)
    columns = user_columns(history, options)
    checks.check_workers(spark)
    checks.check_upstream(history, columns.steps, options.FUNCTION)
    checks.check_partitions(spark, options.shards)
    checks.check_root(spark, options.root, shared_local=options.shared_local)
    plan = plan_of(columns, options)
    frame = columns.input()
    if plan.heartbeat_column is not None:
        mark = named_column(plan.heartbeat_column)
        frame = frame.where(~F.coalesce(mark, F.lit(False)))
    if plan.policy.payload is None:
        # Only IDs and times decide. Errors show these columns.
        shown = dict.fromkeys(column for column, _, _ in plan.id_columns)
        if plan.time.column is not None:
            shown[plan.time.column] = None
        others = [] if plan.now_column is None else [plan.now_column]
        frame = frame.select(*map(named_column, [*shown, *others]))
        plan = replace(plan, user_columns=len(shown), body_columns=0, order_columns=())
    # Rows without ID or time are marked and counted.
    handling = replace(plan.handling, null_ids="emit", null_timestamps="emit")
    policy = replace(plan.policy, source_columns=())
    return frame, replace(
        plan,
        root=options.root,
        streaming=True,  # ties are decided as in the query
        handling=handling,
        policy=policy,
        source_columns=(),
        heartbeat_column=None,
    )


def _needed(history: DataFrame, options: Options) -> Options:
    """Return the options that define ID, time and payload, without the others."""
    changes: dict[str, Any] = {"verdict": None}
    if options.check_payload is False:
        changes |= {"source_partition": (), "order_by": ()}
    if options.heartbeat is not None:
        try:
            user_columns(history, _changed(options, **changes)).resolve(
                options.heartbeat, "heartbeat"
            )
        except ConfigError:  # a table has no heartbeats
            changes["heartbeat"] = None
    return _changed(options, **changes)


def _changed(options: Options, **changes: Any) -> Options:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DedupWarning)  # the user has seen them
        return replace(options, **changes)


def learn(frame: DataFrame, plan: Plan, query_id: str) -> Learned:
    """Run the job. Raises DataError if a row has no ID or no time; then nothing is written."""
    spark = frame.sparkSession
    assert plan.shards is not None, "a batch knows its shards"
    partitions = shuffle_partitions(checks.setting(spark, checks.PARTITIONS, "")) or plan.shards
    job = HistoryPlan(
        plan, query_id, slot_keys(plan.shards, 4 * partitions), str(uuid.uuid4()), wall_clock_ms()
    )
    load_job, load_pack, load_learn = shipped(job), shipped(pack_history), shipped(learn_history)

    def pack_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return load_pack()(load_job(), batches)

    def learn_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return load_learn()(load_job(), batches)

    packed = frame.mapInArrow(pack_rows, from_arrow_schema(DATED_ARROW))
    in_order = packed.repartition(partitions, "shard").sortWithinPartitions("shard", "start_ms")
    learned = in_order.mapInArrow(learn_rows, from_arrow_schema(LEARNED_ARROW))
    try:
        # Otherwise a task may get all its rows at once. Spark 3.5 does not know this setting.
        with checks.changed_setting(spark, _ARROW_BYTES, "16m"):
            rows = learned.collect()
    except Exception as error:
        found = cause(error)
        if found is not None and found.remedy == "large-micro-batch":
            raise ConfigError(
                "A shard's rows of a slice of time exceed max_shard_batch_bytes. Raise it, use "
                "more `shards`, or with `timestamp` a shorter `bucket_length`, which has four."
            ) from None
        raise found or error from None
    lacking = max((row["lacking"] for row in rows), default=0)
    if lacking:
        raise DataError(
            f"History has {counted(lacking, 'row')} without an ID or a time. "
            f"{rows[0]['example']} Leave such rows out, and call again.",
            remedy="bad-records",
        )
    key_id = filter_key_id(query_id, plan.secret)
    empty = ShardState(bucket_ms=plan.policy.bucket_ms, hash_key_id=key_id)
    states = [empty] * plan.shards
    for row in rows:
        states[row["shard"]] = ShardState.from_bytes(bytes(row["state"]), hash_key_id=key_id)
    certificate = Certificate(
        query_id=query_id,
        shards=plan.shards,
        slot_keys=job.slot_keys,
        hash_key_id=key_id,
        birth_batch=0,
        secret=plan.secret,
        **of_plan(plan),
    )
    return Learned(
        certificate,
        tuple(states),
        *(sum(row[name] for row in rows) for name in ("rows", "too_old", "future")),
    )

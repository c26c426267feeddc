"""Applies an operator to a DataFrame: checks on the driver, then three passes over the rows.

The passes are pack (rows to blobs of one shard), the group function (verdicts) and unpack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.streaming.state import GroupStateTimeout

from dedup.core.admission import EVERY_VERDICT, GOES_ON
from dedup.spark import versions
from dedup.spark.driver import checks
from dedup.spark.driver.columns import Columns
from dedup.spark.driver.plans import plan_of, user_columns
from dedup.spark.driver.shipping import shipped
from dedup.spark.executor import wire
from dedup.spark.executor.group import STATE_SCHEMA, dedup_batch, dedup_stream, output_schema
from dedup.spark.executor.pack import pack
from dedup.spark.executor.unpack import unpack
from dedup.spark.mount_probe import mark_start
from dedup.spark.observations import observations, pack_name, pack_observations
from dedup.spark.options import Options, SequenceOptions
from dedup.spark.plan import Plan

#: A pass over the rows of one task.
MapPass: TypeAlias = Callable[[Plan, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

AnyOptions = TypeVar("AnyOptions", Options, SequenceOptions)


@dataclass(frozen=True, slots=True)
class Operator(Generic[AnyOptions]):
    """A transformation from DataFrame to DataFrame, as `dedup_by_id(...)` returns it."""

    options: AnyOptions

    def __repr__(self) -> str:
        return self.options.as_call()

    def __call__(self, df: DataFrame) -> DataFrame:
        """Return the DataFrame without duplicates.

        Raises ConfigError or CatalogError if the operator cannot work.
        """
        prepared, plan = prepare(df, self.options)
        return assemble(prepared, plan, self.options.metrics, output=emitted_schema(df, plan))


def prepare(df: DataFrame, options: Options | SequenceOptions) -> tuple[DataFrame, Plan]:
    """Check everything, and return the input of the first pass and the plan for the tasks."""
    columns = user_columns(df, options)
    checks.check_workers(df.sparkSession)
    if df.isStreaming:
        _check_stream(columns, options)
    plan = plan_of(columns, options)
    if plan.root is not None and plan.marked:
        mark_start(plan.root, plan.start_id)
    return columns.input(), plan


def _check_stream(columns: Columns, options: Options | SequenceOptions) -> None:
    spark = columns.df.sparkSession
    versions.check_driver()
    window = isinstance(options, Options) and options.window_delay is not None
    checks.check_settings(spark, window=window)
    checks.check_upstream(columns.df, columns.steps, options.FUNCTION)
    checks.check_partitions(spark, options.shards)
    if isinstance(options, Options):
        checks.check_root(spark, options.root, shared_local=options.shared_local)


def emitted_schema(df: DataFrame, plan: Plan) -> T.StructType:
    fields = list(df.schema.fields)
    verdict = plan.handling.verdict
    if verdict is not None:
        metadata = {GOES_ON: sorted(plan.emitted), EVERY_VERDICT: list(plan.verdicts)}
        fields.append(T.StructField(verdict, T.StringType(), False, metadata))
    return T.StructType(fields)


def assemble(
    df: DataFrame,
    plan: Plan,
    metrics: str,
    *,
    output: T.StructType | str,
    first: MapPass | None = None,
    last: MapPass | None = None,
) -> DataFrame:
    """Return a DataFrame that runs `df` through the three passes.

    `metrics` is the name under which `DataFrame.observe` reports, and `output` has the columns that
    the last pass returns. `first` and `last` replace the passes `pack` and `unpack`.
    """
    load_plan, load_stream, load_batch = shipped(plan), shipped(dedup_stream), shipped(dedup_batch)
    load_first, load_last = shipped(first or pack), shipped(last or unpack)

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
    packed = sent.observe(pack_name(metrics), *pack_observations()).drop(*wire.PACK_FIGURES)
    shards = packed.groupBy("shard")
    if plan.streaming:
        judged = shards.applyInPandasWithState(
            on_stream, output_schema(plan), STATE_SCHEMA, "append", GroupStateTimeout.NoTimeout
        )
    else:
        judged = shards.applyInPandas(on_batch, output_schema(plan))
    return judged.observe(metrics, *observations(plan)).mapInArrow(unpack_rows, output)

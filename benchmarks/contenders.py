"""The pipelines that benchmarks set side by side: ours, its floor, and what Spark users take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupStateTimeout

from benchmarks.delta import into_delta, rows_of, with_day
from benchmarks.harness import HORIZON, TUNED_ROCKSDB, Pipeline, into_parquet
from benchmarks.keyed_state import ids_per_shard
from dedup import dedup_by_id
from dedup.core.metrics import NAMES, TEXTS
from dedup.spark.driver import plans
from dedup.spark.driver.build import prepare
from dedup.spark.executor import wire
from dedup.spark.executor.group import STATE_SCHEMA, output_schema
from dedup.spark.executor.pack import pack
from dedup.spark.executor.unpack import unpack


def catalog_beside(folder: Path) -> str:
    return str(folder / "catalog")


def operator(
    catalog: Callable[[Path], Any] = catalog_beside, **options: Any
) -> Callable[[DataFrame, Path], DataFrame]:
    """What a user would write, with cache and, by default, catalog beside the checkpoint."""

    def transform(events: DataFrame, folder: Path) -> DataFrame:
        given = {
            "horizon": HORIZON,
            "timestamp": "ts",
            "cache_dir": str(folder / "cache"),
            **options,
        }
        return events.transform(dedup_by_id("event_id", catalog=catalog(folder), **given))

    return transform


def as_on_a_cluster(events: DataFrame, folder: Path) -> DataFrame:
    """The operator as it works where tasks share no disk: rows cross the shuffle."""
    with patch.object(plans, "who_writes_bodies", lambda _: "group"):
        return operator()(events, folder)


def pass_through(events: DataFrame, folder: Path) -> DataFrame:
    """Pack, a state function that lets everything pass, unpack: the floor of the design."""
    options = dedup_by_id(
        "event_id", horizon=HORIZON, timestamp="ts", catalog=catalog_beside(folder)
    ).options
    prepared, plan = prepare(events, options)

    def pack_rows(batches: Iterator[Any]) -> Iterator[Any]:
        return pack(plan, batches)

    def unpack_rows(batches: Iterator[Any]) -> Iterator[Any]:
        return unpack(plan, batches)

    def let_pass(key: Any, frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        rows, keys, bodies, verdicts, schema = [], [], [], [], None
        for frame in frames:
            columns = (frame[name] for name in ("rows", "keys", "body"))
            for count, own, body in zip(*columns, strict=True):
                if count == wire.CONTROL:
                    schema = body if body is not None else schema
                else:
                    rows.append(count)
                    keys.append(own)
                    bodies.append(body)
                    verdicts.append(bytes(count))
        state.update((b"",))
        none = [None] * (len(rows) + 1)
        blank: dict[str, Any] = {name: pd.array(none, "Int64") for name in NAMES.columns}
        yield pd.DataFrame(
            {
                "rows": pd.array([wire.CONTROL, *rows], "int32"),
                "keys": pd.Series([None, *keys], dtype=object),
                "body": pd.Series([schema, *bodies], dtype=object),
                "verdicts": pd.Series([None, *verdicts], dtype=object),
                **blank,
                "shard_index": pd.array(none, "Int32"),
                **{name: pd.Series(none, dtype=object) for name in (*TEXTS, "expiring")},
            }
        )

    packed = prepared.mapInArrow(pack_rows, wire.SENT_SCHEMA).drop(*wire.PACK_FIGURES)
    passed = packed.groupBy("shard").applyInPandasWithState(
        let_pass, output_schema(plan), STATE_SCHEMA, "append", GroupStateTimeout.NoTimeout
    )
    return passed.mapInArrow(unpack_rows, events.schema)


def spark_built_in(events: DataFrame, folder: Path) -> DataFrame:
    return events.withWatermark("ts", HORIZON).dropDuplicatesWithinWatermark(["event_id"])


def shuffle_only(events: DataFrame, folder: Path) -> DataFrame:
    return events.repartition("event_id")


def contenders() -> dict[str, Pipeline]:
    """All of them, by name."""
    pipelines = [
        Pipeline("scan + repartition(id)", shuffle_only, unique=False),
        Pipeline("pack, pass-through state, unpack", pass_through, unique=False),
        Pipeline("dedup_by_id", operator()),
        Pipeline("dedup_by_id, as on a cluster", as_on_a_cluster),
        Pipeline("dedup_by_id, stable timestamps", operator(stable_timestamps=True)),
        Pipeline("dropDuplicatesWithinWatermark, HDFS-backed", spark_built_in),
        Pipeline("dropDuplicatesWithinWatermark, RocksDB tuned", spark_built_in, TUNED_ROCKSDB),
        Pipeline(
            "transformWithState, RocksDB tuned", ids_per_shard, TUNED_ROCKSDB, trigger="20 seconds"
        ),
        Pipeline("dedup_by_id, into Parquet", operator(), sink=into_parquet),
        Pipeline("Delta MERGE of new IDs", with_day, sink=into_delta, rows_kept=rows_of),
    ]
    return {pipeline.name: pipeline for pipeline in pipelines}

"""The operator against Spark's built-ins, micro-batch by micro-batch on the same input.

All pipelines are started at once and fed in turn, one micro-batch each, so that drift of the
machine hits all of them; what counts are the ratios. Nothing else runs while one is fed.

    python -m benchmarks.pipelines --batches 10
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import numpy as np
import pandas as pd
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupStateTimeout

from benchmarks.events import SCHEMA, Events
from dedup import dedup_by_id, kernel
from dedup.spark import wire
from dedup.spark.build import prepare
from dedup.spark.group import OUTPUT_SCHEMA, STATE_SCHEMA
from dedup.spark.metrics import COLUMNS, from_progress
from dedup.spark.pack import pack
from dedup.spark.unpack import unpack

HORIZON = "7 days"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
BASE_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": HDFS,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "true",
}
TUNED_ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
}


@dataclass
class Pipeline:
    """One contender: how it transforms the stream, under which settings."""

    name: str
    transform: Callable[[DataFrame, Path], DataFrame]
    settings: dict[str, str] = field(default_factory=dict)
    query: StreamingQuery | None = None
    folder: Path = Path()
    batch_ms: list[int] = field(default_factory=list)
    metrics: list[Any] = field(default_factory=list)

    def start(self, spark: SparkSession, folder: Path) -> None:
        for key, value in {**BASE_SETTINGS, **self.settings}.items():
            spark.conf.set(key, value)
        self.folder = folder / "in"
        self.folder.mkdir(parents=True)
        source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1000)
        events = source.parquet(str(self.folder))
        self.query = (
            self.transform(events, folder)
            .writeStream.format("noop")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .start()
        )

    def feed(self, files: list[Path]) -> None:
        """One micro-batch: the files appear at once."""
        assert self.query is not None
        staged = self.folder.with_name("staged")
        staged.mkdir(exist_ok=True)
        for file in files:
            os.link(file, staged / file.name)
        before = self._last_batch()
        for file in files:
            (staged / file.name).rename(self.folder / file.name)
        while self._last_batch() == before:
            self.query.processAllAvailable()
            time.sleep(0.05)
        progresses = [p for p in self.query.recentProgress if p["batchId"] > before]
        busy = [p for p in progresses if p["numInputRows"]]
        # A micro-batch that only moves a watermark on is part of the cost.
        self.batch_ms.append(sum(p["batchDuration"] for p in progresses))
        self.metrics.append(from_progress(busy[-1]) if busy else None)

    def _last_batch(self) -> int:
        assert self.query is not None
        done = [p["batchId"] for p in self.query.recentProgress if p["numInputRows"]]
        return max(done, default=-1)


def operator(events: DataFrame, folder: Path) -> DataFrame:
    """What a user would write."""
    return events.transform(
        dedup_by_id("event_id", horizon=HORIZON, timestamp="ts", catalog=str(folder / "catalog"))
    )


def stable(events: DataFrame, folder: Path) -> DataFrame:
    """The same, with the promise that copies carry the same timestamp."""
    return events.transform(
        dedup_by_id(
            "event_id",
            horizon=HORIZON,
            timestamp="ts",
            stable_timestamps=True,
            catalog=str(folder / "catalog"),
        )
    )


def pass_through(events: DataFrame, folder: Path) -> DataFrame:
    """Pack, a state function that lets everything pass, unpack: the floor of the design."""
    options = dedup_by_id(
        "event_id", horizon=HORIZON, timestamp="ts", catalog=str(folder / "catalog")
    ).options
    prepared, plan = prepare(events, options)

    def pack_rows(batches: Iterator[Any]) -> Iterator[Any]:
        return pack(plan, batches)

    def unpack_rows(batches: Iterator[Any]) -> Iterator[Any]:
        return unpack(plan, batches)

    def let_pass(key: Any, frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        rows, bodies, verdicts, schema = [], [], [], None
        for frame in frames:
            for count, body in zip(frame["rows"], frame["body"], strict=True):
                if count == wire.CONTROL:
                    schema = body if body is not None else schema
                else:
                    rows.append(count)
                    bodies.append(body)
                    verdicts.append(bytes(count))
        state.update((b"",))
        none = [None] * (len(rows) + 1)
        blank: dict[str, Any] = {name: pd.array(none, "Int64") for name in COLUMNS}
        yield pd.DataFrame(
            {
                "rows": pd.array([wire.CONTROL, *rows], "int32"),
                "body": pd.Series([schema, *bodies], dtype=object),
                "verdicts": pd.Series([None, *verdicts], dtype=object),
                **blank,
                "shard_index": pd.array(none, "Int32"),
                "gc_source": pd.Series(none, dtype=object),
            }
        )

    packed = prepared.mapInArrow(pack_rows, wire.PACKED_SCHEMA)
    passed = packed.groupBy("shard").applyInPandasWithState(
        let_pass, OUTPUT_SCHEMA, STATE_SCHEMA, "append", GroupStateTimeout.NoTimeout
    )
    return passed.mapInArrow(unpack_rows, events.schema)


def spark_built_in(events: DataFrame, folder: Path) -> DataFrame:
    return events.withWatermark("ts", HORIZON).dropDuplicatesWithinWatermark(["event_id"])


def shuffle_only(events: DataFrame, folder: Path) -> DataFrame:
    return events.repartition("event_id")


def contenders() -> dict[str, Pipeline]:
    made = [
        Pipeline("scan + repartition(id)", shuffle_only),
        Pipeline("pack, pass-through state, unpack", pass_through),
        Pipeline("dedup_by_id", operator),
        Pipeline("dedup_by_id, stable timestamps", stable),
        Pipeline("dropDuplicatesWithinWatermark, HDFS-backed", spark_built_in),
        Pipeline("dropDuplicatesWithinWatermark, RocksDB tuned", spark_built_in, TUNED_ROCKSDB),
    ]
    return {pipeline.name: pipeline for pipeline in made}


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    events = Events(rows=arguments.rows, duplicates=arguments.duplicates)
    data = Path(arguments.data or Path(tempfile.gettempdir(), "dedup-bench-data"))
    data = data / f"{events.rows}-{events.duplicates}-{events.seed}"
    work = Path(tempfile.mkdtemp(prefix="dedup-bench-", dir=arguments.work))
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", arguments.driver_memory)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.pollingDelay", "1000")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    wanted = [
        p
        for n, p in contenders().items()
        if not arguments.only or any(o in n for o in arguments.only)
    ]
    for number, pipeline in enumerate(wanted):
        pipeline.start(spark, work / str(number))
    try:
        for number in range(arguments.batches):
            files = events.write(data, number)
            for pipeline in wanted:
                pipeline.feed(files)
                print(
                    f"batch {number} {pipeline.name}: {pipeline.batch_ms[-1]} ms", file=sys.stderr
                )
    finally:
        for pipeline in wanted:
            if pipeline.query is not None:
                pipeline.query.stop()
    result = {
        "machine": machine(),
        "rows_per_batch": events.rows,
        "duplicates": events.duplicates,
        "horizon": HORIZON,
        "settings": {p.name: {**BASE_SETTINGS, **p.settings} for p in wanted},
        "batch_ms": {p.name: p.batch_ms for p in wanted},
        "stage_us": {p.name: [m.stage_us if m else None for m in p.metrics] for p in wanted},
    }
    last = next((p.metrics[-1] for p in wanted if p.metrics and p.metrics[-1]), None)
    if last is not None:
        result["last"] = {k: getattr(last, k) for k in last.__slots__ if k != "stage_us"}
    spark.stop()
    shutil.rmtree(work, ignore_errors=True)
    return result


def machine() -> dict[str, Any]:
    return {
        "cpus": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "numpy": np.__version__,
        "kernel": kernel.PATH,
        "max_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "time": time.strftime("%Y-%m-%d"),
    }


def table(result: dict[str, Any]) -> str:
    """Medians of three micro-batches at about 2 M and at the most live IDs, and the ratios."""
    times: dict[str, list[int]] = result["batch_ms"]
    ours = times["dedup_by_id"]
    windows = {
        f"{live / 1e6:.0f} M live": slice(last - 2, last + 1)
        for last in (min(3, len(ours) - 1), len(ours) - 1)
        for live in [result["rows_per_batch"] * (1 - result["duplicates"]) * last]
    }
    head = "".join(f"{window:>14}{'/ ours':>9}" for window in windows)
    lines = [f"{'ms per micro-batch at about':46}{head}"]
    for name, values in times.items():
        line = f"{name:46}"
        for window in windows.values():
            median = statistics.median(values[window])
            line += f"{median:14.0f}{median / statistics.median(ours[window]):8.2f}x"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=11)
    parser.add_argument("--duplicates", type=float, default=0.05)
    parser.add_argument("--only", action="append")
    parser.add_argument("--driver-memory", default="8g")
    parser.add_argument("--data")
    parser.add_argument("--work")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = run(arguments)
    print(table(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

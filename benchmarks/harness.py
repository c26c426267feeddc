"""What every benchmark of the operator shares: session, pipelines fed in turn, machine facts.

All pipelines of a run are started at once and fed in turn, one micro-batch each, so that drift of
the machine hits all of them; what counts are the ratios. Nothing else runs while one is fed.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import numpy as np
import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.events import SCHEMAS, Events
from dedup import kernel
from dedup.core.metrics import BatchMetrics
from dedup.spark.observations import from_progress
from dedup.tools.check.cost_rules import ARROW_BYTES, NO_ARROW_LIMIT

HORIZON, HORIZON_MS = "7 days", 7 * 86_400_000
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
BASE_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": HDFS,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "true",
    # No shape of rows is large (`arrow_batches`).
    ARROW_BYTES: str(NO_ARROW_LIMIT),
}
TUNED_ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
}
#: Of the rows that come out, where they are counted.
_COUNT = "rows_out"
Sink = Callable[[DataStreamWriter, Path], DataStreamWriter]


def into_nothing(writer: DataStreamWriter, folder: Path) -> DataStreamWriter:
    """Computes all rows and keeps none."""
    return writer.format("noop")


def into_parquet(writer: DataStreamWriter, folder: Path) -> DataStreamWriter:
    """Writes all rows, as Spark does."""
    return writer.format("parquet").option("path", str(folder / "out"))


@dataclass
class Pipeline:
    """One contender: how it transforms the stream, under which settings, and into what.

    Not every one de-duplicates. Where `count_rows` is set, `rows_out` counts what came out; what
    a table keeps is counted there. One that never rests, because it works by processing time, has a
    trigger: it is looked at so often, whether there are rows or not.
    """

    name: str
    transform: Callable[[DataFrame, Path], DataFrame]
    settings: dict[str, str] = field(default_factory=dict)
    sink: Sink = into_nothing
    schema: str = SCHEMAS["narrow"]
    unique: bool = True
    rows_kept: Callable[[Path], int] | None = None
    count_rows: bool = False
    trigger: str | None = None
    query: StreamingQuery | None = None
    folder: Path = Path()
    batch_ms: list[int] = field(default_factory=list)
    metrics: list[BatchMetrics | None] = field(default_factory=list)
    progress: list[dict[str, Any]] = field(default_factory=list)
    rows_out: int = 0

    def start(self, spark: SparkSession, folder: Path) -> None:
        """Start the query; ``folder`` may hold its checkpoint and catalog already."""
        for key, value in {**BASE_SETTINGS, **self.settings}.items():
            spark.conf.set(key, value)
        self.folder = folder / "in"
        self.folder.mkdir(parents=True, exist_ok=True)
        source = spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1000)
        events = source.parquet(str(self.folder))
        rows = self.transform(events, folder)
        if self.count_rows and self.rows_kept is None:
            rows = rows.observe(_COUNT, fn.count(fn.lit(1)).alias("rows"))
        self.begin(rows, folder)

    def begin(self, rows: DataFrame, folder: Path) -> None:
        """Start the query over rows that are transformed already."""
        writer = rows.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        if self.trigger is not None:
            writer = writer.trigger(processingTime=self.trigger)
        self.query = self.sink(writer, folder).start()

    def feed(self, files: list[Path]) -> None:
        """One micro-batch: the files appear at once."""
        assert self.query is not None
        staged = self.folder.with_name("staged")
        staged.mkdir(exist_ok=True)
        for file in files:
            try:
                os.link(file, staged / file.name)
            except OSError:  # on another file system
                shutil.copy(file, staged / file.name)
        before = self.last_batch()
        for file in files:
            (staged / file.name).rename(self.folder / file.name)
        self.finish(before)

    def finish(self, before: int) -> None:
        """Wait for the micro-batch after one, and note what it took."""
        assert self.query is not None
        while self.last_batch() == before:
            if self.trigger is None:
                self.query.processAllAvailable()
            elif not self.query.isActive:
                raise self.query.exception() or RuntimeError(f"{self.name} was stopped")
            time.sleep(0.05)
        progresses = [p for p in self.query.recentProgress if p["batchId"] > before]
        busy = [p for p in progresses if p["numInputRows"]]
        # A micro-batch that only moves a watermark on is part of the cost, one of a clock is not.
        costs = progresses if self.trigger is None else busy
        self.batch_ms.append(sum(p["batchDuration"] for p in costs))
        self.metrics.append(from_progress(busy[-1]) if busy else None)
        self.progress.append(dict(busy[-1]["durationMs"]) if busy else {})
        if self.rows_kept is not None:
            self.rows_out = self.rows_kept(self.folder.parent)
        elif self.count_rows:
            counts = [p.observedMetrics.get(_COUNT) for p in progresses]
            self.rows_out += sum(count["rows"] for count in counts if count)

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()
            self.query = None

    def last_batch(self) -> int:
        assert self.query is not None
        done = [p["batchId"] for p in self.query.recentProgress if p["numInputRows"]]
        return max(done, default=-1)


def parser(
    description: str | None,
    *,
    rows: int = 1_000_000,
    batches: int | None = None,
    driver_memory: str | None = None,
    name: str | None = None,
) -> argparse.ArgumentParser:
    """Arguments of every benchmark: size and number of micro-batches, and where files go.

    Those with a driver's memory also take the share of duplicates, those with a name may keep their
    result under another.
    """
    options = argparse.ArgumentParser(description=description)
    if driver_memory is not None:
        options.add_argument("--driver-memory", default=driver_memory)
        options.add_argument("--duplicates", type=float, default=0.05)
    if name is not None:
        options.add_argument("--name", default=name, help="of the result")
    options.add_argument("--rows", type=int, default=rows, help="of a micro-batch")
    if batches is not None:
        options.add_argument("--batches", type=int, default=batches)
    options.add_argument("--data", help="folder where generated input is kept between runs")
    options.add_argument("--work", help="folder for checkpoints, catalogs and caches")
    return options


@contextmanager
def session(
    *,
    master: str = "local[2]",
    partitions: int = 2,
    driver_memory: str = "8g",
    settings: dict[str, str] | None = None,
) -> Iterator[SparkSession]:
    """A session on this machine, stopped at the end with its JVM."""
    builder = (
        SparkSession.builder.master(master)
        .config("spark.driver.memory", driver_memory)
        .config("spark.sql.shuffle.partitions", str(partitions))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.pollingDelay", "1000")
    )
    spark = builder.config(map={**BASE_SETTINGS, **(settings or {})}).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def work_folder(arguments: argparse.Namespace) -> Iterator[Path]:
    """A folder for checkpoints, catalogs and caches, removed at the end."""
    with tempfile.TemporaryDirectory(
        prefix="dedup-bench-", dir=arguments.work, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


@contextmanager
def side_by_side(spark: SparkSession, pipelines: list[Pipeline], work: Path) -> Iterator[None]:
    """All pipelines run, each in a folder named by its number."""
    for number, pipeline in enumerate(pipelines):
        pipeline.start(spark, work / str(number))
    yield
    for pipeline in pipelines:
        pipeline.stop()


@contextmanager
def comparison(
    arguments: argparse.Namespace, pipelines: list[Pipeline], **options: Any
) -> Iterator[None]:
    """A separate `session` in which all pipelines run, in a folder that is removed."""
    with (
        work_folder(arguments) as work,
        session(**options) as spark,
        side_by_side(spark, pipelines, work),
    ):
        yield


def data_folder(given: str | None, events: Events) -> Path:
    """Where generated input is kept between runs."""
    name = "-".join(str(value) for value in asdict(events).values())
    return Path(given or Path(tempfile.gettempdir(), "dedup-bench-data")) / name


def filling(live: float, rows: int, duplicates: float = 0.05) -> tuple[Events, int]:
    """Events, and how many micro-batches of them bring so many million live IDs in one horizon."""
    batches = max(1, round(live * 1e6 / (rows * (1 - duplicates))))
    return Events(rows=rows, duplicates=duplicates, batch_ms=HORIZON_MS // batches), batches


def numbers(metrics: BatchMetrics) -> dict[str, Any]:
    """What a micro-batch counted, without its lists."""
    figures = {each.name: getattr(metrics, each.name) for each in fields(metrics)}
    return {name: value for name, value in figures.items() if not isinstance(value, tuple | list)}


def bytes_in(folder: Path) -> int:
    """Size of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def drop_page_cache() -> None:
    """Let the system forget what it remembers of files, if it lets us."""
    os.sync()
    with suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("3")


def machine() -> dict[str, Any]:
    """Where and with what the figures were measured."""
    return {
        "cpus": os.cpu_count(),
        "cpu": _cpu(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "pyarrow": pa.__version__,
        "numpy": np.__version__,
        "rocksdict": version("rocksdict"),
        **dict(_rivals()),
        "kernel": kernel.PATH,
        "date": time.strftime("%Y-%m-%d"),
    }


def _rivals() -> Iterator[tuple[str, str]]:
    for name in ("deltalake", "duckdb", "polars", "pybloom-live"):
        with suppress(PackageNotFoundError):
            yield name, version(name)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), "?")

"""Rows to folders of files: what whole micro-batches cost against Spark's own file sink.

python -m benchmarks.files
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

import dedup
from benchmarks.events import Events
from benchmarks.harness import (
    Pipeline,
    Sink,
    data_folder,
    parser,
    session,
    side_by_side,
    work_folder,
)
from benchmarks.results import finish, median
from dedup.sinks import published_files

FORMATS, CORES = ("parquet", "json", "csv"), 2


def by_spark(file_format: str) -> Sink:
    """Spark's own, whose readers have to know its log."""

    def sink(writer: DataStreamWriter, folder: Path) -> DataStreamWriter:
        return writer.format(file_format).option("path", str(folder / "out"))

    return sink


def by_dedup(file_format: str) -> Sink:
    """Our format."""

    def sink(writer: DataStreamWriter, folder: Path) -> DataStreamWriter:
        given = {"path": str(folder / "out"), "file.format": file_format}
        return writer.format("dedup_files").options(**given)

    return sink


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Times of every micro-batch, fed in turn."""
    events = Events(rows=arguments.rows, duplicates=0.0)
    data = data_folder(arguments.data, events)

    def same(rows: DataFrame, folder: Path) -> DataFrame:
        return rows

    pipelines = [Pipeline("into nothing", same)]
    for file_format in FORMATS:
        pipelines.append(Pipeline(f"{file_format}, Spark", same, sink=by_spark(file_format)))
        pipelines.append(Pipeline(f"{file_format}, dedup_files", same, sink=by_dedup(file_format)))
    with work_folder(arguments) as work, session() as spark:
        dedup.register(spark)
        with side_by_side(spark, pipelines, work):
            for number in range(arguments.batches):
                files = events.write(data, number, files=CORES)
                for each in pipelines:
                    each.feed(files)
        shown = len(published_files(work / "2" / "out"))
        assert shown == arguments.batches * CORES, "each task has written one file"
    return {
        "rows_per_batch": arguments.rows,
        "warm_up": arguments.warm_up,
        "batch_ms": {each.name: each.batch_ms for each in pipelines},
    }


def table_of(result: dict[str, Any]) -> str:
    """Medians, and throughput against Spark's own sink."""
    middle = {name: median(each[result["warm_up"] :]) for name, each in result["batch_ms"].items()}
    rows = result["rows_per_batch"]
    lines = [f"{f'{rows:,} rows':28}{'ms':>8}{'rows/s':>12}{'throughput':>12}"]
    for name, ms in middle.items():
        spark = middle.get(f"{name.partition(',')[0]}, Spark")
        ratio = "" if spark is None else f"{spark / ms:11.2f}x"
        lines.append(f"{name:28}{ms:8.0f}{rows / ms * 1000:12,.0f}{ratio}")
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__, rows=200_000, batches=10)
    options.add_argument("--warm-up", type=int, default=3)
    finish("files", measured(options.parse_args()), table_of)


if __name__ == "__main__":
    main()

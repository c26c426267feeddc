"""A query with `dedup_by_sequence` that is run as a campaign asks, in portions of its input.

Between two portions it rests: Spark forgets that the last micro-batch was committed, and runs it
again. Once, all that the query has on disk is copied there; the copy is run to its end later.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import dedup
from dedup import dedup_by_sequence
from dedup.sinks.folder_sink import SparkRows, StagedFiles
from dedup.testing import faults
from tests.faults.fleet import EXPIRE_S, FLEET_SCHEMA
from tests.support.spark_query import forget_commits

#: Names under the campaign's folder.
LATER, REPLAYED, CLONE = "later", "replayed", "clone"
#: One file is read by one task.
FILES_PER_BATCH = 2


def run_numbered(spark: SparkSession, config: dict[str, Any], folder: Path) -> None:
    """Take all input, portion by portion."""
    source = Path(config["input"])
    while True:
        _to_the_end(spark, config, folder, source)
        later = sorted((folder / LATER).glob("*.parquet"))
        if not later:
            return
        if config["clone"] and not (folder / CLONE).exists():
            _copy(folder)
        checkpoint = folder / "checkpoint"
        last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
        forget_commits(checkpoint, last)
        with open(folder / REPLAYED, "a") as told:
            told.write(f"{last}\n")
        for path in later[:FILES_PER_BATCH]:
            path.rename(source / path.name)


def _copy(folder: Path) -> None:
    made = folder / f"{CLONE}.part"
    shutil.rmtree(made, ignore_errors=True)
    for name in ("checkpoint", "output"):
        shutil.copytree(folder / name, made / name)
    made.rename(folder / CLONE)


def _to_the_end(spark: SparkSession, config: dict[str, Any], folder: Path, source: Path) -> None:
    """Start the query again while it is faults that stop it."""
    while True:
        struck = len(_struck())
        try:
            _started(spark, config, folder, source).awaitTermination()
        except StreamingQueryException:
            if len(_struck()) == struck:
                raise
        else:
            return


def _struck() -> list[tuple[str, str, int]]:
    return faults.fired(os.environ[faults.VARIABLE])


def _started(
    spark: SparkSession, config: dict[str, Any], folder: Path, source: Path
) -> StreamingQuery:
    reader = spark.readStream.schema(FLEET_SCHEMA)
    records = reader.option("maxFilesPerTrigger", FILES_PER_BATCH).parquet(str(source))
    operator = dedup_by_sequence(
        "producer", "sequence", epoch="epoch", partition="line", timestamp="ts",
        expire_after=f"{EXPIRE_S} seconds", verdict="verdict", **config["options"],
    )  # fmt: skip
    output = folder / "output"
    writer = records.transform(operator).writeStream.trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    if config["numbered"] == "files":
        dedup.register(spark)
        return writer.format("dedup_files").option("path", str(output)).start()
    sink = StagedFiles(output=output, writer=SparkRows("parquet"))
    sink.open()
    return writer.foreachBatch(sink).start()

"""A query in its own process, to be killed and started again: files in, folders out.

    python -m tests.faults.query CONFIG.json

It runs over all existing input and exits with 0. Every record passes, with its verdict.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import dedup
from dedup import DedupListener, dedup_by_id, dedup_by_sequence
from dedup.sinks.batch_folders import STAGING
from dedup.sinks.files import query as files
from dedup.sinks.folder_sink import SparkRows, StagedFiles
from dedup.testing import faults
from tests.faults.fleet import EXPIRE_S, FLEET_SCHEMA
from tests.support.object_store import s3_factory
from tests.support.quick_spark import QUICK_SESSION
from tests.support.spark_query import SCHEMA, forget_commits

#: Names under the campaign's folder.
SIDE, SPECULATED, LATER, REPLAYED, CLONE = "side", "speculated", "later", "replayed", "clone"
METRICS = "metrics"
#: Of one start after another: no filter is in state, then all of them return, then half leave.
FILTER_STATE_BYTES = (0, 1 << 20, 1 << 10)
#: Of one start after another, under a spike.
MAX_LIVE_IDS = (200, 800, 100, None)
#: Of numbered records; one file is read by one task.
FILES_PER_BATCH = 2


def session(settings: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName("dedup under faults")
    for key, value in {
        **QUICK_SESSION,
        # A task may be killed as often as the plan says.
        "spark.master": "local[2,1000]",
        "spark.task.maxFailures": "1000",
        "spark.driver.memory": "1g",
        "spark.log.level": "OFF",
        **settings,
    }.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def main() -> None:
    config: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(config["folder"])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = config["settings"] | {"spark.local.dir": str(folder / "local")}
    options = dict(config["options"])
    if "spark.master" in settings:
        # Executors keep their caches on their own disks.
        settings[f"spark.executorEnv.{faults.VARIABLE}"] = os.environ[faults.VARIABLE]
        options |= {} if config.get("s3") else {"shared_local": True}
    else:
        settings["spark.python.daemon.module"] = "dedup.spark.daemon"
        options |= {"cache_dir": str(folder / "cache")}
    spark = session(settings)
    if config["numbered"]:
        run_numbered(spark, config, folder)
    else:
        run_by_id(spark, config, folder, options)
    (folder / SPECULATED).write_text(str(speculated(spark)))


def run_by_id(
    spark: SparkSession, config: dict[str, Any], folder: Path, options: dict[str, Any]
) -> None:
    """Take all input through `dedup_by_id`."""
    catalog = s3_factory(**config["s3"]) if config.get("s3") else str(folder / "catalog")
    given = {"maxFilesPerTrigger": "1"}
    records = spark.readStream.schema(SCHEMA).options(**given).parquet(str(folder / "input"))
    options["filter_state_bytes"] = FILTER_STATE_BYTES[config["turn"] % 3]
    if config["spike"]:
        options["max_live_ids"] = MAX_LIVE_IDS[config["turn"] % len(MAX_LIVE_IDS)]
        spark.streams.addListener(DedupListener(log=str(folder / METRICS)))
    operator = dedup_by_id("id", catalog=catalog, **options)
    side = folder / SIDE if config.get("side") else None
    made = files.query(
        records,
        operator,
        files.SourceFiles(
            place=str(folder / "input"),
            options=given,
            by_spark="not asked for" if config.get("by_spark") else None,
        ),
        "not asked for"
        if config.get("by_spark")
        else files.OutputFolder(
            staging=folder / "output" / STAGING, split_by="verdict" if side else None
        ),
    )
    assert (made.read_by_spark, made.written_by_spark) in {(None, None), ("not asked for",) * 2}
    sink = StagedFiles(
        output=folder / "output",
        writer=made.writer or SparkRows(),
        duplicates=side,
        verdict="verdict",
        goes_on=frozenset({"unique", "late"}),
    )
    sink.open()
    query = (
        made.stream.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def run_numbered(spark: SparkSession, config: dict[str, Any], folder: Path) -> None:
    """Take all input through `dedup_by_sequence`, in portions.

    Between two portions the query rests: Spark forgets that the last micro-batch was committed, and
    runs it again. Once, all that the query has on disk is copied; the copy is run to its end later.
    """
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
    sink = StagedFiles(output=output, writer=SparkRows())
    sink.open()
    return writer.foreachBatch(sink).start()


def speculated(spark: SparkSession) -> int:
    """How many tasks were started a second time because the first seemed slow."""
    context = spark.sparkContext
    gateway: Any = context._gateway
    store = context._jsc.sc().statusStore()
    no_quantiles = gateway.new_array(gateway.jvm.double, 0)
    stages = store.stageList(None, False, False, no_quantiles, None)
    found = [stages.apply(i) for i in range(stages.size())]
    told = (store.speculationSummary(stage.stageId(), stage.attemptId()) for stage in found)
    return sum(one.get().numTasks() for one in told if one.isDefined())


if __name__ == "__main__":
    main()

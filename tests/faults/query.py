"""A query in its own process, to be killed and started again: files in, folders out.

    python -m tests.faults.query CONFIG.json

It runs over all existing input and exits with 0. Every record passes, with its verdict. Of
numbered records, `numbered_query` says how.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from dedup import dedup_by_id
from dedup.sinks.batch_folders import STAGING
from dedup.sinks.files import query as files
from dedup.sinks.folder_sink import SparkRows, StagedFiles
from dedup.testing import faults
from tests.faults.numbered_query import run_numbered
from tests.support.object_store import s3_factory
from tests.support.quick_spark import QUICK_SESSION
from tests.support.spark_query import SCHEMA

#: Names under the campaign's folder.
SIDE, SPECULATED = "side", "speculated"


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
        settings["spark.python.daemon.module"] = "tests.faults.daemon"
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
    operator = dedup_by_id("id", catalog=catalog, **options)
    side = folder / SIDE if config.get("side") else None
    made = files.query(
        records,
        operator,
        "not asked for"
        if config.get("by_spark")
        else files.SourceFiles(place=str(folder / "input"), options=given),
        "not asked for"
        if config.get("by_spark")
        else files.ParquetFolder(
            staging=folder / "output" / STAGING, split_by="verdict" if side else None
        ),
    )
    assert (made.read_by_spark, made.written_by_spark) in {(None, None), ("not asked for",) * 2}
    sink = StagedFiles(
        output=folder / "output",
        writer=made.writer or SparkRows("parquet"),
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

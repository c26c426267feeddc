"""A query in a process of its own, to be killed and started again: files in, folders out.

    python kill_query.py CONFIG.json

It runs over all input there is and exits with 0. Every record goes on, with its verdict.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "spark"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cluster"))

from object_store import s3_factory
from pyspark.sql import SparkSession
from spark_cluster import QUICK_JAVA
from support import SCHEMA

from dedup import dedup_by_id
from dedup.sinks.staged import StagedFiles


def session(settings: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName("dedup under faults")
    for key, value in {
        # A task may be killed as often as the plan says.
        "spark.master": "local[2,1000]",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.log.level": "OFF",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        **settings,
    }.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def main() -> None:
    config: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(config["folder"])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session(config["settings"] | {"spark.local.dir": str(folder / "local")})
    catalog = s3_factory(**config["s3"]) if config.get("s3") else str(folder / "catalog")
    records = (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder / "input"))
    )
    marked = records.transform(
        dedup_by_id("id", catalog=catalog, cache_dir=str(folder / "cache"), **config["options"])
    )
    sink = StagedFiles(output=folder / "output", file_format="parquet")
    sink.open()
    query = (
        marked.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()

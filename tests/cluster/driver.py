"""A Spark driver in its own process: jobs come in as lines of JSON, answers go out as files.

The JVM is started once; a job with other settings gets a new session, with new executors.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from dedup import BatchMetrics, dedup_by_id
from tests.support import class_archive
from tests.support.object_store import s3_factory
from tests.support.quick_spark import QUICK_SESSION
from tests.support.spark_query import Query
from tests.support.waiting import wait_until

PAUSE_TIMEOUT_S = 60.0
_METRICS = [name for name in BatchMetrics.__slots__ if name != "stage_us"]


class Driver:
    def __init__(self, master: str) -> None:
        self.master = master
        self.settings: dict[str, str] | None = None
        self.spark: SparkSession | None = None

    def session(self, settings: dict[str, str]) -> SparkSession:
        if self.spark is not None and settings == self.settings:
            return self.spark
        self.close()
        given = dict(settings)
        # Only the environment names the executors' Python once the driver runs.
        os.environ["PYSPARK_PYTHON"] = given.pop("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.master(self.master).appName("dedup cluster tests")
        for key, value in {
            **QUICK_SESSION,
            "spark.cores.max": "2",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": class_archive.OPTIONS,
            "spark.driver.memory": "512m",
            "spark.log.level": "ERROR",
            "spark.network.timeout": "60s",
            "spark.task.maxFailures": "2",
            # A free executor takes what there is, wherever the state was.
            "spark.locality.wait": "0s",
            # Work begins when both executors are there, and is not kept from one of them.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
            **given,
        }.items():
            builder = builder.config(key, value)
        self.spark, self.settings = builder.getOrCreate(), settings
        return self.spark

    def close(self) -> None:
        if self.spark is not None:
            self.spark.stop()
            self.spark = None

    def stream(
        self,
        folder: str,
        options: dict[str, Any],
        catalog: dict[str, Any],
        pause_after: Sequence[int] = (),
        settings: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """Run a query over the files of a folder to its end; rows, metrics and executors."""
        spark = self.session(settings or {})
        made = Query(spark, Path(folder), {**options, "catalog": root(**catalog)})
        rows: list[list[dict[str, Any]]] = []

        def read(df: DataFrame) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = df.select("id", "at", "verdict").toArrow().to_pylist()
            rows.append(found)
            if len(rows) - 1 in pause_after:
                pause(Path(folder), pause_after.index(len(rows) - 1))
            return found

        try:
            run = made.run(read)
        except Exception as error:
            return {"rows": rows, "error": str(error), "kind": type(error).__name__}
        finally:
            for query in spark.streams.active:
                query.stop()
        metrics = [{name: getattr(m, name) for name in _METRICS} for m in run.metrics]
        return {"rows": run.rows, "metrics": metrics, "tasks": tasks_done(spark)}

    def sink(
        self,
        folder: str,
        address: str,
        topic: str,
        ranges: Sequence[tuple[int, int]],
        settings: dict[str, str],
    ) -> dict[str, Any]:
        """Write numbers to Kafka, a micro-batch a range; which executors did it."""
        from tests.kafka.sink_query import SinkQuery  # needs the client library

        spark = self.session(settings)
        query = SinkQuery(spark, address, topic, Path(folder))
        query.numbers(*(range(*each) for each in ranges))
        query.run()
        return {"tasks": tasks_done(spark)}

    def batch(self, settings: dict[str, str], options: dict[str, Any]) -> dict[str, Any]:
        """De-duplicate a small batch DataFrame; return the number of rows that pass."""
        spark = self.session(settings)
        try:
            frame = spark.range(10).selectExpr("id % 3 AS id")
            return {"unique": frame.transform(dedup_by_id("id", **options)).count()}
        except Exception as error:
            return {"error": str(error), "kind": type(error).__name__}


def root(path: str | None = None, s3: dict[str, Any] | None = None) -> Any:
    return path if s3 is None else s3_factory(**s3)


def pause(folder: Path, number: int) -> None:
    """Signal the test that this point is reached, and wait for the test."""
    (folder / f"paused {number}").touch()
    if not wait_until((folder / f"go on {number}").exists, PAUSE_TIMEOUT_S):
        raise TimeoutError("the test does not go on")


def tasks_done(spark: SparkSession) -> dict[str, int]:
    """Tasks that each executor has completed, also those that are gone."""
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    found = [executors.apply(i) for i in range(executors.size())]
    return {e.id(): e.completedTasks() for e in found if e.id() != "driver"}


def main() -> None:
    driver = Driver(sys.argv[1])
    try:
        for line in sys.stdin:
            job = json.loads(line)
            answer = getattr(driver, job["job"])(**job["arguments"])
            path = Path(job["answer"])
            path.with_suffix(".tmp").write_text(json.dumps(answer, default=str))
            path.with_suffix(".tmp").rename(path)
    finally:
        driver.close()


if __name__ == "__main__":
    main()

"""A Spark driver in its own process, which does one job after another for the tests.

The JVM is started once; a job with other settings gets a new session, with new executors.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import SparkConf, SparkContext
from pyspark.sql import DataFrame, SparkSession

from dedup import dedup_by_id
from dedup.spark.versions import to_arrow
from dedup.tools import check_platform
from dedup.tools.check.findings import Finding
from tests.support import class_archive
from tests.support.object_store import s3_factory
from tests.support.processes import ROOT, members
from tests.support.quick_spark import QUICK_SESSION
from tests.support.spark_cluster import Cluster, clean_environment
from tests.support.spark_query import Query, Run
from tests.support.waiting import wait_until

_TIMEOUT_S = 120.0
T = TypeVar("T")


@dataclass
class Answer:
    """What came of a job; rows by micro-batch also if it failed, with the error and its kind."""

    run: Run
    tasks: dict[str, int]
    error: str = ""
    kind: str = ""

    def ran(self) -> Run:
        """Return the run of a job that did not fail."""
        assert not self.error, self.error
        return self.run


class DriverProcess:
    """A driver on a cluster; it is started when it is first needed, and again when it has gone."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self._pool: ProcessPoolExecutor | None = None

    def ask(self, job: Callable[..., T], *during: Callable[[], None], **arguments: Any) -> T:
        """Return the answer to a job; it calls each `during` while the job pauses once."""
        if self._pool is None:
            environment = clean_environment() | {"PYTHONPATH": str(ROOT)}
            given = (self.cluster.url, environment, self.folder)
            context = get_context("spawn")
            self._pool = ProcessPoolExecutor(1, context, initializer=_begin, initargs=given)
        answer = self._pool.submit(job, **arguments)
        for number, action in enumerate(during):
            paused = Path(arguments["folder"], f"paused {number}")
            wait_until(lambda path=paused: path.exists() or answer.done(), _TIMEOUT_S)  # type: ignore[misc]
            assert paused.exists(), f"it did not pause: {answer.result(0)}"
            action()
            paused.with_name(f"continue {number}").touch()
        try:
            return answer.result(_TIMEOUT_S)
        except Exception as error:
            self.kill()
            error.add_note((self.folder / "driver.log").read_text(errors="replace")[-6000:])
            raise

    def kill(self) -> None:
        """Kill the driver; the JVM has its own session, and goes when its input is closed."""
        pool, self._pool = self._pool, None
        for process in pool._processes if pool else ():
            for pid in members(process):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if pool:
            pool.shutdown()


def give(folder: Path, tables: Sequence[pa.Table], first: int = 0) -> None:
    """Files of a query's input, one a micro-batch."""
    made = Query(None, folder, {})  # type: ignore[arg-type]  # it only writes files
    made.added = first
    for table in tables:
        made.add_table(table)


# --- in the process of the driver

_master = ""
_spark: SparkSession | None = None
_settings: dict[str, str] = {}


def _begin(master: str, environment: Mapping[str, str], folder: Path) -> None:
    global _master
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    with open("driver.log", "w") as log:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(log.fileno(), stream.fileno())
    _master = master


def _session(settings: dict[str, str]) -> SparkSession:
    global _spark, _settings
    if _spark is not None and settings == _settings:
        return _spark
    if _spark is not None:
        _spark.stop()
    given = dict(settings)
    # Only the environment names the executors' Python once the driver runs.
    os.environ["PYSPARK_PYTHON"] = given.pop("PYSPARK_PYTHON", sys.executable)
    of_all_jobs = {
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
    }
    # A JVM hands on to all of its sessions what it is started with.
    SparkContext._ensure_initialized(conf=SparkConf(False).setAll([*of_all_jobs.items()]))
    builder = SparkSession.builder.master(_master).appName("dedup cluster tests")
    _spark, _settings = builder.config(map={**of_all_jobs, **given}).getOrCreate(), settings
    return _spark


def stream(
    folder: str,
    options: dict[str, Any],
    path: str | None = None,
    s3: dict[str, Any] | None = None,
    pause_after: Sequence[int] = (),
    settings: dict[str, str] | None = None,
) -> Answer:
    """Run a query over the files of a folder to its end, with a catalog at a path or on S3."""
    spark = _session(settings or {})
    catalog = path if s3 is None else s3_factory(**s3)
    made = Query(spark, Path(folder), {**options, "catalog": catalog})
    rows: list[list[dict[str, Any]]] = []

    def read(df: DataFrame) -> list[dict[str, Any]]:
        rows.append(to_arrow(df.select("id", "at", "verdict")).to_pylist())
        if len(rows) - 1 in pause_after:
            _pause(Path(folder), pause_after.index(len(rows) - 1))
        return rows[-1]

    try:
        return Answer(made.run(read), _tasks_done(spark))
    except Exception as error:
        return Answer(Run(dict(enumerate(rows))), {}, str(error), type(error).__name__)
    finally:
        for query in spark.streams.active:
            query.stop()


def sink(
    folder: str, address: str, topic: str, ranges: Sequence[range], settings: dict[str, str]
) -> Answer:
    """Write numbers to Kafka, a micro-batch a range; which executors did it."""
    from tests.kafka.sink_query import SinkQuery  # needs the client library

    spark = _session(settings)
    query = SinkQuery(spark, address, topic, Path(folder))
    query.numbers(*ranges)
    query.run()
    return Answer(Run(), _tasks_done(spark))


def batch(settings: dict[str, str], options: dict[str, Any]) -> Answer:
    """De-duplicate a small batch DataFrame; the answer has its rows as micro-batch 0."""
    spark = _session(settings)
    try:
        frame = spark.range(10).selectExpr("id % 3 AS id")
        passed = to_arrow(frame.transform(dedup_by_id("id", **options))).to_pylist()
        return Answer(Run({0: passed}), {})
    except Exception as error:
        return Answer(Run(), {}, str(error), type(error).__name__)


def examine(
    settings: dict[str, str],
    path: str | None = None,
    s3: dict[str, Any] | None = None,
    py_files: str | None = None,
) -> tuple[list[Finding], int]:
    """Check the platform, with a catalog at a path or on S3; the findings, and executors."""
    catalog = path if s3 is None else s3_factory(**s3)
    spark = _session(settings)
    if py_files is not None:
        spark.sparkContext.addPyFile(py_files)
    return check_platform(spark, catalog=catalog), len(_tasks_done(spark))


def _pause(folder: Path, number: int) -> None:
    """Signal the test that this point is reached, and wait for the test."""
    (folder / f"paused {number}").touch()
    if not wait_until((folder / f"continue {number}").exists, 60):
        raise TimeoutError("the test does not continue")


def _tasks_done(spark: SparkSession) -> dict[str, int]:
    """Tasks that each executor has completed, also those that are gone."""
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    found = [executors.apply(i) for i in range(executors.size())]
    return {e.id(): e.completedTasks() for e in found if e.id() != "driver"}

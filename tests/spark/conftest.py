"""One Spark session for all the tests of a process: starting a JVM costs more than most tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.cli_job import FileDrop, Job
from tests.support.quick_spark import FULL, INTERPRETED_PLANS, workers_that_can_fail

# Workers must run this Python, not the first one on the PATH.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


@pytest.fixture(scope="session")
def _session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    scratch = tmp_path_factory.mktemp("spark")
    with workers_that_can_fail():
        session = (
            # Two attempts a task: tests make tasks fail once.
            SparkSession.builder.master("local[2,2]")
            .appName("dedup tests")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            # Of the whole JVM: `writeStream` asks whichever session is active.
            .config("spark.sql.timeType.enabled", "true")
            .config("spark.driver.memory", "1g")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .config("spark.log.level", "OFF")
            .config("spark.local.dir", str(scratch / "local"))
            .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
            .config(map={} if FULL else {**INTERPRETED_PLANS})
            .getOrCreate()
        )
    yield session
    session.stop()


@pytest.fixture
def spark(_session: SparkSession) -> Iterator[SparkSession]:
    """A session with settings, views and streams of its own, on the shared JVM."""
    session = _session.newSession()
    yield session
    for query in session.streams.active:
        query.stop()


@pytest.fixture
def files(tmp_path: Path) -> FileDrop:
    """Drop files whose modification times ascend in the order of the calls."""
    return FileDrop(tmp_path / "input")


@pytest.fixture
def job(spark: SparkSession, files: FileDrop, tmp_path: Path) -> Job:
    """`dedup run` with the settings of a session of its own."""
    return Job(spark, files, tmp_path)

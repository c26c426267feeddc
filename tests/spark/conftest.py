"""A session for each test, on the one JVM of the process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.cli_job import FileDrop, Job
from tests.support.quick_spark import session_of_the_process

# Workers must run this Python, not the first one on the PATH.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


@pytest.fixture(scope="session")
def _session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = session_of_the_process(tmp_path_factory.mktemp("spark"))
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

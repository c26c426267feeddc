"""A session for each test, on the one JVM of the process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.cli_job import FileDrop, Job


@pytest.fixture
def spark(shared_spark: SparkSession) -> Iterator[SparkSession]:
    """A session with its own settings, views and streams."""
    session = shared_spark.newSession()
    yield session
    for query in session.streams.active:
        query.stop()


@pytest.fixture
def files(tmp_path: Path) -> FileDrop:
    """Drop files whose modification times ascend in the order of the calls."""
    return FileDrop(tmp_path / "input")


@pytest.fixture
def job(spark: SparkSession, files: FileDrop, tmp_path: Path) -> Job:
    """`dedup run` in a separate session."""
    return Job(spark, files, tmp_path)

"""A cluster and its driver, for all tests of a process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.cluster.driver import DriverProcess
from tests.support.spark_cluster import Cluster, running_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        pytest.skip("needs a JDK 17 or newer")
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def driver(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DriverProcess]:
    process = DriverProcess(cluster, tmp_path_factory.mktemp("driver"))
    try:
        yield process
    finally:
        process.kill()

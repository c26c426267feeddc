"""A Spark Connect server in front of the cluster, whose executors get the package by an archive."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from pyarrow import dataset
from pyspark.sql import SparkSession

import dedup
from dedup import dedup_by_id, split
from dedup.sinks import files_sink
from dedup.testing import faults
from tests.cluster.driver import DriverProcess
from tests.cluster.test_cluster import BarePython
from tests.support.processes import ROOT, Daemon, run_python
from tests.support.quick_spark import QUICK_SESSION
from tests.support.spark_cluster import SPARK_HOME, Cluster, clean_environment
from tests.support.spark_query import Query, finish, forget_commits

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("grpc") is None, reason="needs grpcio (pip install grpcio)"),
]
#: Where a Python finds the archive's packages. A session's jobs run in a folder below the one into
#: which Spark unpacks it.
UNPACKED = "environment/packages:../environment/packages"


@pytest.fixture
def server(cluster: Cluster, driver: DriverProcess, tmp_path: Path) -> Iterator[str]:
    """The address of a server whose executors have a Python without the package."""
    driver.kill()  # it holds the cores
    archive, armed = tmp_path / "environment.tar.gz", tmp_path / "faults"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(Path(dedup.__file__).parent, "packages/dedup")
    armed.mkdir()
    settings = QUICK_SESSION | {
        "spark.archives": f"{archive}#environment",
        "spark.connect.grpc.binding.port": "0",
        "spark.cores.max": "2",
        "spark.driver.memory": "512m",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": UNPACKED,
        f"spark.executorEnv.{faults.VARIABLE}": str(armed),
        "spark.locality.wait": "0s",
    }
    command = [SPARK_HOME / "bin" / "spark-submit", "--master", cluster.url, "--class",
               "org.apache.spark.sql.connect.service.SparkConnectServer"]  # fmt: skip
    command += [part for pair in settings.items() for part in ("--conf", "=".join(pair))]
    python = BarePython(tmp_path / "bare").executable
    environment = clean_environment() | {"PYSPARK_PYTHON": python, "PYTHONPATH": str(ROOT)}
    daemon = Daemon.start([*command, "spark-internal"], tmp_path / "server.log", environment)
    try:
        started = daemon.wait_for(r"Spark Connect server started at: \S*:(\d+)")
        yield f"sc://127.0.0.1:{started[1]}"
    finally:
        daemon.kill()


def test_a_connect_server_on_a_cluster_publishes_each_record_once(
    server: str, cluster: Cluster, tmp_path: Path
) -> None:
    code = (
        "import sys\nfrom tests.cluster.test_cluster_connect import through_server\n"
        "through_server(*sys.argv[1:])"
    )
    assert run_python(code, server, tmp_path) == {
        "batch": 3,
        "unique": [100, 1],
        "duplicate": [60, 1],
        "format": [100, 2],
    }
    for worker in cluster.workers:
        assert any(worker.folder.glob("work/app-*/*/environment/packages/dedup")), worker


def through_server(server: str, place: str) -> None:
    """Run as the client, in a process without a classic session."""
    spark = SparkSession.builder.remote(server).getOrCreate()
    folder = Path(place)
    frame = spark.range(10).selectExpr("id % 3 AS id")
    batch = frame.transform(dedup_by_id("id", horizon="1 hour")).count()
    options = {"horizon": "1 hour", "verdict": "verdict", "shared_local": True}
    query = Query(spark, folder / "query", options)
    for number in range(4):
        query.add(*(f"{name}@{number}" for name in range(20 * number, 20 * number + 40)))
    checkpoint = query.folder / "checkpoint"
    sinks = {
        name: files_sink(folder / name, checkpoint=str(checkpoint), options={"name": name})
        for name in ("unique", "duplicate")
    }
    faults.arm(folder / "faults", "files.task.end", "kill")
    finish(split(query.result(), **sinks).trigger(availableNow=True).start())
    assert len(faults.fired(folder / "faults")) == 1, "a task was tried again"
    forget_commits(checkpoint, 3)
    finish(split(query.result(), **sinks).trigger(availableNow=True).start())
    dedup.register(spark)
    query.catalog, checkpoint = folder / "catalog", folder / "checkpoint"
    writer = query.result().writeStream.format("dedup_files").option("path", str(folder / "format"))
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    for _ in range(2):
        finish(writer.start())
        forget_commits(checkpoint, 3)
    told = {name: _seen(folder / name) for name in ("unique", "duplicate", "format")}
    print(json.dumps({"batch": batch, **told}))


def _seen(folder: Path) -> tuple[int, int]:
    """How many different IDs are in the output, and how often the most frequent one."""
    ids = Counter(dataset.dataset(folder).to_table(["id"])["id"].to_pylist())
    return len(ids), max(ids.values())

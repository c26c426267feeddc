"""The operator where driver and executors are processes of their own, each with its own disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from tests.cluster.driver_process import DriverProcess, as_run, give
from tests.support.object_store import BUCKET, ObjectStore
from tests.support.oracle import Oracle
from tests.support.small_state import HORIZON_S, LATENESS_S, OPTIONS, tables, total
from tests.support.spark_cluster import Cluster, Worker
from tests.support.spark_query import Run

#: Micro-batch after which a worker is lost.
LOST_AFTER = 3


def both_worked(cluster: Cluster, answer: dict[str, Any]) -> None:
    """Both executors completed tasks of the group function: each keeps views on its own disk."""
    assert sum(tasks > 0 for tasks in answer["tasks"].values()) >= 2, answer["tasks"]
    assert len(cluster.workers) == 2
    for worker in cluster.workers:
        assert worker.cached(), worker.folder


def was_worth_it(run: Run) -> None:
    for name in ("segments_written", "segments_merged", "views_built", "filter_true_positive"):
        assert total(run, name) > 0, name


def test_a_catalog_on_a_shared_path(
    cluster: Cluster, driver: DriverProcess, tmp_path: Path
) -> None:
    given = tables(6)
    give(tmp_path, given)
    answer = driver.ask(
        "stream",
        folder=str(tmp_path),
        options={**OPTIONS, "shared_local": True},
        catalog={"path": str(tmp_path / "catalog")},
    )
    run = as_run(answer)
    Oracle(HORIZON_S, LATENESS_S).check(given, run)
    was_worth_it(run)
    both_worked(cluster, answer)
    assert len(list((tmp_path / "catalog" / "starts").iterdir())) == 1


# The other tests of this folder give a function.
@pytest.mark.parametrize("how", [pytest.param("factory", marks=pytest.mark.slow), "URI"])
def test_a_catalog_in_an_object_store(
    cluster: Cluster, store: ObjectStore, driver: DriverProcess, tmp_path: Path, how: str
) -> None:
    given = tables(6)
    give(tmp_path, given)
    catalog: dict[str, Any] = {"path": store.uri(how)}
    if how == "factory":
        catalog = {"s3": {"endpoint": store.endpoint, "folder": how}}
    answer = driver.ask("stream", folder=str(tmp_path), options=OPTIONS, catalog=catalog)
    run = as_run(answer)
    Oracle(HORIZON_S, LATENESS_S).check(given, run)
    was_worth_it(run)
    both_worked(cluster, answer)
    objects = pafs.FileSelector(f"{BUCKET}/{how}", recursive=True)
    names = [info.path for info in store.file_system().get_file_info(objects)]
    assert sum(name.endswith(".sst") for name in names) >= 2
    assert not any("/starts/" in name for name in names), "an object store needs no mark"


def test_a_worker_is_lost_with_its_disk(
    cluster: Cluster, store: ObjectStore, driver: DriverProcess, tmp_path: Path
) -> None:
    given = tables(6)
    give(tmp_path, given)
    lost: list[int] = []
    added: list[Worker] = []

    def lose_one() -> None:
        lost.append(cluster.lose(cluster.workers[0]))
        added.extend(cluster.add_workers())
        added[0].wait_for_executor()

    answer = driver.ask(
        "stream",
        lose_one,
        folder=str(tmp_path),
        options=OPTIONS,
        catalog={"s3": {"endpoint": store.endpoint, "folder": "lost"}},
        pause_after=[LOST_AFTER],
    )
    assert lost
    assert lost[0] > 0, "its cache was warm"
    run = as_run(answer)
    Oracle(HORIZON_S, LATENESS_S).check(given, run)
    was_worth_it(run)
    assert len(answer["tasks"]) == 3, "there is a new executor"
    both_worked(cluster, answer)
    # The new disk holds what was written before there was this worker.
    assert run.metrics[LOST_AFTER + 1].bytes_fetched > 0
    epochs = {int(path.name[:12]) for path in added[0].cached() if path.name[:12].isdigit()}
    assert min(epochs) <= LOST_AFTER


def test_a_path_that_is_not_shared(driver: DriverProcess, tmp_path: Path) -> None:
    """Every executor has a working folder of its own, so this path is a different one in each."""
    give(tmp_path, tables(1))
    answer = driver.ask(
        "stream",
        folder=str(tmp_path),
        options={**OPTIONS, "shared_local": True},
        catalog={"path": "/proc/self/cwd/catalog"},
    )
    assert answer["kind"] == "StreamingQueryException"
    assert answer["rows"] == []
    for part in (
        "dedup.errors.CatalogError: shared_local=True, but",
        "does not see in /proc/self/cwd/catalog what the driver wrote",
        "Mount the driver's folder there on every machine, or use an object store",
    ):
        assert part in answer["error"]


def test_a_path_that_nobody_called_shared(driver: DriverProcess, tmp_path: Path) -> None:
    give(tmp_path, tables(1))
    catalog = {"path": str(tmp_path / "catalog")}
    answer = driver.ask("stream", folder=str(tmp_path), options=OPTIONS, catalog=catalog)
    assert answer["kind"] == "ConfigError"
    assert "is a local path, but Spark runs on spark://" in answer["error"]
    assert not (tmp_path / "catalog").exists()

"""The operator with driver and executors in separate processes, each with its own disk.

One file, so that `make test` starts one cluster.
"""

from __future__ import annotations

import shutil
import socket
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

import dedup
from dedup.testing import faults
from dedup.tools.check.findings import Level
from tests.cluster.driver import Answer, DriverProcess, batch, examine, give
from tests.cluster.driver import stream as stream_job
from tests.support.object_store import BUCKET, ObjectStore
from tests.support.oracle import Oracle
from tests.support.small_state import HORIZON_S, LATENESS_S, OPTIONS, tables, total
from tests.support.spark_cluster import Cluster, Worker
from tests.support.spark_query import Run

#: Micro-batch after which a worker is lost.
LOST_AFTER = 3


def stream(
    driver: DriverProcess, folder: Path, catalog: dict[str, Any], *meanwhile: Callable[[], None],
    shared: bool = False, **more: Any,
) -> Answer:  # fmt: skip
    """The answer to a query over the files of a folder."""
    options = OPTIONS | ({"shared_local": True} if shared else {})
    given = {"folder": str(folder), "options": options, **catalog, **more}
    return driver.ask(stream_job, *meanwhile, **given)


def both_worked(cluster: Cluster, answer: Answer) -> None:
    """Both executors completed tasks of the group function: each keeps views on its own disk."""
    assert sum(tasks > 0 for tasks in answer.tasks.values()) >= 2, answer.tasks
    assert len(cluster.workers) == 2
    for worker in cluster.workers:
        assert worker.cached(), worker.folder


def was_worth_it(run: Run) -> None:
    for name in ("segments_written", "segments_merged", "views_built", "filter_true_positive"):
        assert total(run, name) > 0, name


@pytest.mark.slow
def test_a_query_on_a_cluster_is_right_with_a_catalog_on_a_shared_path(
    cluster: Cluster, driver: DriverProcess, tmp_path: Path
) -> None:
    given = tables(6)
    give(tmp_path, given)
    answer = stream(driver, tmp_path, {"path": str(tmp_path / "catalog")}, shared=True)
    run = answer.ran()
    Oracle(HORIZON_S, LATENESS_S).check(given, run)
    was_worth_it(run)
    both_worked(cluster, answer)
    assert len(list((tmp_path / "catalog" / "starts").iterdir())) == 1


# The other tests of this folder give a function.
@pytest.mark.parametrize("how", [pytest.param("factory", marks=pytest.mark.slow), "URI"])
def test_a_query_on_a_cluster_is_right_with_a_catalog_in_an_object_store(
    cluster: Cluster, store: ObjectStore, driver: DriverProcess, tmp_path: Path, how: str
) -> None:
    given = tables(6)
    give(tmp_path, given)
    catalog: dict[str, Any] = {"path": store.uri(how)}
    if how == "factory":
        catalog = {"s3": {"endpoint": store.endpoint, "folder": how}}
    answer = stream(driver, tmp_path, catalog)
    run = answer.ran()
    Oracle(HORIZON_S, LATENESS_S).check(given, run)
    was_worth_it(run)
    both_worked(cluster, answer)
    objects = pafs.FileSelector(f"{BUCKET}/{how}", recursive=True)
    names = [info.path for info in store.file_system().get_file_info(objects)]
    assert sum(name.endswith(".sst") for name in names) >= 2
    assert not any("/starts/" in name for name in names), "an object store needs no mark"


@pytest.mark.slow
def test_fallbacks_of_executors_change_no_verdict_and_are_counted(
    driver: DriverProcess, tmp_path: Path
) -> None:
    """The executors compute with numpy, and a task fails once before its rows are read."""
    given, armed = tables(4), tmp_path / "faults"
    give(tmp_path, given)
    armed.mkdir()
    faults.arm(armed, "group.end", "raise")
    environment = {"DEDUP_KERNEL": "numpy", faults.VARIABLE: str(armed)}
    run = stream(
        driver, tmp_path, {"path": str(tmp_path / "catalog")}, shared=True,
        settings={f"spark.executorEnv.{name}": value for name, value in environment.items()},
    ).ran()  # fmt: skip
    assert len(faults.fired(armed)) == 1
    Oracle(HORIZON_S, LATENESS_S).check(given, run)
    assert [m.shards_without_kernel for m in run.metrics] == [m.shards for m in run.metrics]
    assert 0 < run.metrics[-1].shards_without_files < run.metrics[-1].shards


@pytest.mark.slow
def test_the_loss_of_a_worker_and_its_disk_changes_no_verdict(
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

    catalog = {"s3": {"endpoint": store.endpoint, "folder": "lost"}}
    answer = stream(driver, tmp_path, catalog, lose_one, pause_after=[LOST_AFTER])
    assert lost
    assert lost[0] > 0, "its cache was warm"
    run = answer.ran()
    Oracle(HORIZON_S, LATENESS_S).check(given, run)
    was_worth_it(run)
    assert len(answer.tasks) == 3, "there is a new executor"
    both_worked(cluster, answer)
    # The new disk holds what was written before there was this worker.
    assert run.metrics[LOST_AFTER + 1].bytes_fetched > 0
    epochs = {int(path.name[:12]) for path in added[0].cached() if path.name[:12].isdigit()}
    assert min(epochs) <= LOST_AFTER


def test_a_catalog_path_that_executors_do_not_share_stops_the_query(
    driver: DriverProcess, tmp_path: Path
) -> None:
    """Every executor has its own working folder, so this path is a different one in each."""
    give(tmp_path, tables(1))
    answer = stream(driver, tmp_path, {"path": "/proc/self/cwd/catalog"}, shared=True)
    assert answer.kind == "StreamingQueryException"
    assert answer.run.rows == {}
    for part in (
        "dedup.errors.CatalogError: shared_local=True, but",
        "does not see in /proc/self/cwd/catalog what the driver wrote",
        "Mount the driver's folder there on every machine, or use an object store",
    ):
        assert part in answer.error


def test_a_local_catalog_path_on_a_cluster_is_rejected_without_shared_local(
    driver: DriverProcess, tmp_path: Path
) -> None:
    give(tmp_path, tables(1))
    answer = stream(driver, tmp_path, {"path": str(tmp_path / "catalog")})
    assert answer.kind == "ConfigError"
    assert "is a local path, but Spark runs on spark://" in answer.error
    assert not (tmp_path / "catalog").exists()


# --- credentials that the object store refuses: at once, or from some moment on


def asking(store: ObjectStore, tmp_path: Path, folder: str) -> tuple[dict[str, Any], Path, Path]:
    """A catalog whose function reads its secrets from a file, and leaves a file per call."""
    secrets, calls = tmp_path / "secrets", tmp_path / "calls"
    calls.mkdir()
    given = {"endpoint": store.endpoint, "folder": folder}
    return {"s3": {**given, "secrets": str(secrets), "calls": str(calls)}}, secrets, calls


@pytest.mark.parametrize("how", ["factory", "URI"])
def test_wrong_credentials_are_refused_before_the_query_starts(
    store: ObjectStore, driver: DriverProcess, tmp_path: Path, how: str
) -> None:
    give(tmp_path, tables(1))
    catalog, secrets, calls = asking(store, tmp_path, "refused")
    secrets.write_text("AKIAWRONG very-secret-indeed")
    if how == "URI":
        catalog = {"path": store.uri("refused", ("AKIAWRONG", "very-secret-indeed"))}
    with store.enforced_rights():
        answer = stream(driver, tmp_path, catalog)
    assert answer.kind == "CatalogError"
    assert f"{BUCKET}/refused cannot be written" in answer.error
    assert "INVALID_ACCESS_KEY_ID" in answer.error, "the store's own word"
    assert "this user or these credentials may read and write it" in answer.error
    assert "very-secret-indeed" not in answer.error
    assert not (tmp_path / "checkpoint").exists()
    # Credentials may have run out: a function is asked for others once.
    assert len(list(calls.iterdir())) == (2 if how == "factory" else 0)


@pytest.mark.slow
def test_rotated_credentials_are_picked_up_and_revoked_ones_stop_the_query(
    store: ObjectStore, driver: DriverProcess, tmp_path: Path
) -> None:
    given = tables(5)
    give(tmp_path, given)
    catalog, secrets, calls = asking(store, tmp_path, "rotated")
    with store.enforced_rights():
        first = store.add_user("first")
        secrets.write_text(" ".join(first))

        def rotate() -> None:
            secrets.write_text(" ".join(store.add_user("second")))
            store.forbid("first")

        meanwhile = (rotate, lambda: store.forbid("second"))
        answer = stream(driver, tmp_path, catalog, *meanwhile, pause_after=[0, 2])
        assert answer.kind == "StreamingQueryException"
        assert "dedup.errors.CatalogError: cannot " in answer.error
        assert f"s3://{BUCKET}/rotated/" in answer.error
        assert "ACCESS_DENIED" in answer.error
        assert "these credentials may read and write it" in answer.error
        assert first[1] not in answer.error
        assert len(answer.run.rows) == 3, "two micro-batches after the first key was refused"
        keys = [path.read_text() for path in calls.iterdir()]
        assert first[0] in keys
        assert set(keys) != {first[0]}, "the function was asked again"
        # Once by the driver; on executors by each process, not by each task.
        before = sorted(
            path.name.partition("-")[0] for path in calls.iterdir() if path.read_text() == first[0]
        )
        assert before == sorted(set(before))

        store.allow("second")
        again = stream(driver, tmp_path, catalog)
    run = again.ran()
    assert sorted(run.rows) == [3, 4]
    run.rows |= answer.run.rows
    Oracle(HORIZON_S, LATENESS_S).check(given, run)


# --- executors whose Python lacks the package, or has it in another version


class BarePython:
    """A virtual environment without dedup; what is put into `extra` is importable in it.

    Modules of this environment appear in it by links, so that nothing is installed again.
    """

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True)
        self.executable = str(folder / "bin" / "python")
        (packages,) = folder.glob("lib/python*/site-packages")
        for origin in {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}:
            for entry in origin.iterdir():
                if not any(name in entry.name for name in ("dedup", "__editable__")):
                    (packages / entry.name).symlink_to(entry)
        self.extra = folder / "extra"
        self.extra.mkdir()
        (packages / "extra.pth").write_text(f"{self.extra}\n")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> BarePython:
    return BarePython(tmp_path_factory.mktemp("bare") / "venv")


def settings(bare: BarePython) -> dict[str, str]:
    return {"PYSPARK_PYTHON": bare.executable, "spark.python.worker.reuse": "false"}


@pytest.mark.slow
def test_an_executor_without_the_package_is_reported(
    driver: DriverProcess, bare: BarePython, tmp_path: Path
) -> None:
    give(tmp_path, tables(1))
    catalog = {"path": str(tmp_path / "catalog")}
    answers = [
        stream(driver, tmp_path, catalog, shared=True, settings=settings(bare)),
        driver.ask(batch, settings=settings(bare), options={"horizon": "1 hour"}),
    ]
    for answer in answers:
        for part in (
            f"dedup.errors.ExecutorError: The executor on {socket.gethostname()} cannot run",
            "cannot import the package (No module named 'dedup')",
            f"Its Python is {bare.executable}; the driver has rolling-dedup {dedup.__version__}",
            f"Install rolling-dedup=={dedup.__version__} there",
            "spark.archives",
        ):
            assert part in answer.error


def test_an_executor_with_another_version_is_reported(
    driver: DriverProcess, bare: BarePython
) -> None:
    other = bare.extra / "dedup"
    other.mkdir()
    (other / "__init__.py").write_text('__version__ = "0.0.9"\n')
    answer = driver.ask(batch, settings=settings(bare), options={"horizon": "1 hour"})
    assert f"it has rolling-dedup 0.0.9 ({other}/__init__.py)" in answer.error
    assert f"Install rolling-dedup=={dedup.__version__} there" in answer.error
    shutil.rmtree(other)


def test_a_platform_is_checked_where_the_package_is_missing(
    cluster: Cluster, driver: DriverProcess, bare: BarePython, tmp_path: Path
) -> None:
    root = tmp_path / "new" / "catalog"
    findings, executors = driver.ask(examine, settings=settings(bare), path=str(root))
    assert executors == 2
    stops = {finding.rule: finding.evidence for finding in findings if finding.level is Level.STOPS}
    assert set(stops) == {"package"}, stops
    assert "the package cannot be imported (ModuleNotFoundError: No mod" in stops["package"]
    told = " ".join(finding.evidence for finding in findings)
    for part in (
        "2 executors answered",
        "see each other's files",
        f"{root} was not tried without the package",
        f"{root} works",
    ):
        assert part in told
    assert list(tmp_path.iterdir()) == []
    for worker in cluster.workers:
        assert list(worker.folder.glob("**/dedup-probe-*")) == []


@pytest.mark.slow
@pytest.mark.parametrize("way", ["spark.archives", "--py-files"])
def test_a_package_that_spark_ships_runs_on_executors(
    driver: DriverProcess, bare: BarePython, tmp_path: Path, way: str
) -> None:
    """A zip cannot hold the C kernel, so there numpy computes."""
    package, settings_of, py_files = Path(dedup.__file__).parent, settings(bare), None
    if way == "spark.archives":
        archive = shutil.make_archive(str(tmp_path / "packages"), "gztar", package.parent, "dedup")
        settings_of |= {
            "spark.archives": f"{archive}#environment",
            "spark.executorEnv.PYTHONPATH": "environment",
        }
    else:
        py_files = shutil.make_archive(str(tmp_path / "dedup"), "zip", package.parent, "dedup")
    root = tmp_path / "catalog"
    findings, _ = driver.ask(examine, settings=settings_of, path=str(root), py_files=py_files)
    levels = {finding.rule: finding.level for finding in findings}
    kernel = Level.FINE if way == "spark.archives" else Level.COSTS
    assert levels == dict.fromkeys(levels, Level.FINE) | {"kernel": kernel}, findings
    give(tmp_path, given := tables(3))
    run = stream(driver, tmp_path, {"path": str(root)}, shared=True, settings=settings_of).ran()
    Oracle(HORIZON_S, LATENESS_S).check(given, run)
    lacking = 0 if way == "spark.archives" else run.metrics[0].shards
    assert [m.shards_without_kernel for m in run.metrics] == [lacking] * 3


@pytest.mark.slow
def test_credentials_that_executors_lack_are_reported(
    store: ObjectStore, driver: DriverProcess
) -> None:
    """The driver finds its secrets in its working folder, and the executors do not in theirs."""
    given = {"endpoint": store.endpoint, "folder": "checked", "secrets": "/proc/self/cwd/secrets"}
    with store.enforced_rights():
        (driver.folder / "secrets").write_text(" ".join(store.add_user("checked")))
        findings, executors = driver.ask(examine, settings={}, s3=given)
    assert executors == 2
    (finding,) = (finding for finding in findings if finding.level is Level.STOPS)
    assert finding.rule == "catalog"
    assert "The catalog function failed" in finding.evidence
    assert "No such file" in finding.evidence
    left = pafs.FileSelector(f"{BUCKET}/checked", recursive=True, allow_not_found=True)
    assert store.file_system().get_file_info(left) == []


@pytest.mark.slow
def test_an_executor_that_has_the_package_runs_a_batch(
    driver: DriverProcess, bare: BarePython
) -> None:
    """Shows that this Python lacks nothing but the package."""
    (bare.extra / "dedup").symlink_to(Path(dedup.__file__).parent)
    answer = driver.ask(batch, settings=settings(bare), options={"horizon": "1 hour"})
    assert len(answer.ran().rows[0]) == 3

"""What tests share: the `slow` marker, load groups, and fixtures of sessions, stores and faults."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.support import class_archive
from tests.support.kafka_needs import need_library
from tests.support.needs import not_tested
from tests.support.quick_spark import FAULTS, FULL, session_of_the_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.object_store import ObjectStore

# Workers must run this Python, not the first one on the PATH.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
if not FULL:
    # For every Spark that a test starts, `dedup run` in its own process included.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", class_archive.OPTIONS)

#: Each test waits for the disk many times. Memory needs no waiting.
_MEMORY, _MEMORY_BYTES = Path("/dev/shm"), 6 << 30
if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _MEMORY_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

# A busy machine is not a defect. Each run draws other examples, so many short runs see as
# many examples as a few long runs.
settings.register_profile("untimed", deadline=None, max_examples=200 if FULL else 40)
settings.load_profile("untimed")

#: With `--dist loadgroup` one worker runs all tests of a group, so that its server starts once.
#: These groups take longest and start first. Each other file is a group.
_GROUPS = {
    "tests/kafka/": "broker",
    "tests/databases/": "databases",
    "tests/cluster/": "cluster and object store",
    "tests/files_sink/": "cluster and object store",
    "tests/lakehouse/test_lake_stores.py": "cluster and object store",
}
#: What comes first and last of the rest: the longest files, and the many short ones.
_ORDER = [*_GROUPS, "tests/faults/", "tests/lakehouse/", "tests/spark/", "", "tests/unit/"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes long; runs with CI_FULL=1 only")
    in_parallel = getattr(config.option, "numprocesses", None)
    if not FULL and in_parallel and not hasattr(config, "workerinput"):
        class_archive.make_in_background()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute load groups, without their names in the IDs of tests."""
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class Groups(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            found = (group for path, group in _GROUPS.items() if nodeid.startswith(path))
            return next(found, nodeid.partition("::")[0])

    return Groups(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _rank(item.nodeid))
    # `-m` on the command line decides for itself.
    if FULL or config.option.markexpr:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


def _rank(nodeid: str) -> int:
    return max(range(len(_ORDER)), key=lambda n: (nodeid.startswith(_ORDER[n]), len(_ORDER[n])))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Close with what was not tested, and how to test it."""
    yield
    lines = not_tested(terminalreporter.stats.get("skipped", []))
    if not FULL and not terminalreporter.config.option.markexpr:
        lines.append("       Tests that take long: set CI_FULL=1")
    terminalreporter.section("not tested")
    for line in lines:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def kafka_library() -> None:
    """For tests of this package's Kafka that need the client library, and no broker."""
    need_library()


@pytest.fixture(scope="session")
def shared_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The first session of the process, on the JVM that all its tests share."""
    session = session_of_the_process(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def spark(shared_spark: SparkSession) -> Iterator[SparkSession]:
    """The shared session, whose queries end with the test."""
    yield shared_spark
    for query in shared_spark.streams.active:
        query.stop()


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    from tests.support.object_store import running_store

    with running_store(tmp_path_factory.mktemp("store") / "moto.log") as running:
        yield running


@pytest.fixture
def fault_folder() -> Path:
    """Faults armed here strike Python workers of the shared session."""
    for path in FAULTS.iterdir():
        path.unlink()
    return FAULTS


@pytest.fixture
def armed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Faults armed here strike this process, and those forked from it."""
    from dedup.errors import faults

    folder = tmp_path / "faults"
    folder.mkdir()
    monkeypatch.setattr(faults, "_folder", str(folder))
    return folder

"""Executors whose Python lacks the package, or has it in another version."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

import dedup
from tests.cluster.bare_python import BarePython
from tests.cluster.driver_process import DriverProcess, give
from tests.support.small_state import OPTIONS, tables


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> BarePython:
    return BarePython(tmp_path_factory.mktemp("bare") / "venv")


def settings(bare: BarePython) -> dict[str, str]:
    return {
        "PYSPARK_PYTHON": bare.executable,
        "spark.python.worker.reuse": "false",
    }


def test_an_executor_without_the_package(
    driver: DriverProcess, bare: BarePython, tmp_path: Path
) -> None:
    give(tmp_path, tables(1))
    catalog = {"path": str(tmp_path / "catalog")}
    answers = [
        driver.ask(
            "stream",
            settings=settings(bare),
            folder=str(tmp_path),
            options={**OPTIONS, "shared_local": True},
            catalog=catalog,
        ),
        driver.ask("batch", settings=settings(bare), options={"horizon": "1 hour"}),
    ]
    for answer in answers:
        for part in (
            f"dedup.errors.ExecutorError: The executor on {socket.gethostname()} cannot run",
            "cannot import the package (No module named 'dedup')",
            f"Its Python is {bare.executable}; the driver has rolling-dedup {dedup.__version__}",
            f"Install rolling-dedup=={dedup.__version__} there",
            "spark.archives",
        ):
            assert part in answer["error"]


def test_an_executor_with_another_version(driver: DriverProcess, bare: BarePython) -> None:
    other = bare.extra / "dedup"
    other.mkdir()
    (other / "__init__.py").write_text('__version__ = "0.0.9"\n')
    answer = driver.ask("batch", settings=settings(bare), options={"horizon": "1 hour"})
    assert f"it has rolling-dedup 0.0.9 ({other}/__init__.py)" in answer["error"]
    assert f"Install rolling-dedup=={dedup.__version__} there" in answer["error"]
    # Nothing else was wrong with that Python.
    shutil.rmtree(other)
    other.symlink_to(Path(dedup.__file__).parent)
    answer = driver.ask("batch", settings=settings(bare), options={"horizon": "1 hour"})
    assert answer == {"unique": 3}

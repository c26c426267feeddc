"""The Python daemon that loads what tasks need: real processes, without Spark's Java."""

from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from dedup.spark.daemon import unzipped
from tests.support.processes import python

ZIPPED = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"


@contextmanager
def daemon(errors: Path, **environment: str) -> Iterator[tuple[int, int]]:
    """The process ID of a daemon, started as Spark does, and of a worker that it forks."""
    spark = {"PYTHONPATH": str(ZIPPED), "PYTHON_WORKER_FACTORY_SECRET": "secret"}
    with (
        errors.open("wb") as stderr,
        subprocess.Popen(
            [sys.executable, "-m", "dedup.spark.daemon", "pyspark.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=os.environ | spark | {"OMP_NUM_THREADS": "1"} | environment,
        ) as process,
    ):
        assert process.stdout is not None
        port = struct.unpack("!i", process.stdout.read(4))[0]
        with socket.create_connection(("127.0.0.1", port)) as connection:
            pid = struct.unpack("!i", connection.recv(4, socket.MSG_WAITALL))[0]
            yield process.pid, pid
        # Spark, too, ends it by closing its input.
        process.communicate()


def module(pid: int) -> str:
    named = re.search(r"\w+\.(spark\.)?daemon", Path(f"/proc/{pid}/cmdline").read_text())
    assert named is not None
    return named[0]


def libraries(pid: int) -> set[str]:
    maps = Path(f"/proc/{pid}/maps").read_text()
    return set(re.findall(r"libarrow|pandas|rocksdict|_native", maps))


def test_a_worker_starts_with_all_libraries_loaded(tmp_path: Path) -> None:
    with daemon(tmp_path / "stderr", PYTHONVERBOSE="1") as (parent, worker):
        assert module(parent) == "dedup.spark.daemon"
        assert len(os.listdir(f"/proc/{parent}/task")) == 1
        assert libraries(worker) == {"libarrow", "pandas", "rocksdict", "_native"}
    imports = (tmp_path / "stderr").read_text(errors="replace")
    assert "import 'pyspark.worker' # <_frozen_importlib_external.SourceFileLoader" in imports
    assert "pyspark.zip" not in "".join(re.findall(r"^import 'pyspark.*", imports, re.M))


@pytest.mark.skipif(
    os.cpu_count() == 1, reason="needs two cores: OpenBLAS starts no threads on one"
)
def test_if_a_library_starts_threads_sparks_own_daemon_runs(tmp_path: Path) -> None:
    with daemon(tmp_path / "stderr", OMP_NUM_THREADS="2") as (parent, worker):
        assert module(parent) == "pyspark.daemon"
        assert len(os.listdir(f"/proc/{parent}/task")) == 1
        assert libraries(worker) == set()
        # Programs that a task starts find what Spark's own daemon would have left them.
        path = Path(f"/proc/{worker}/environ").read_text()
        assert f"PYTHONPATH={ZIPPED}\0" in path


@pytest.mark.parametrize(
    "module_text",
    ["raise ModuleNotFoundError('none here')", "raise ValueError('numpy.dtype size changed')"],
)
def test_a_library_that_cannot_be_loaded_does_not_stop_the_daemon(
    tmp_path: Path, module_text: str
) -> None:
    # What it prints must not be taken for the daemon's address.
    (tmp_path / "rocksdict.py").write_text(f"print('a notice')\n{module_text}")
    path = os.pathsep.join([str(ZIPPED), str(tmp_path)])
    with daemon(tmp_path / "stderr", PYTHONPATH=path) as (parent, worker):
        assert module(parent) == "dedup.spark.daemon"
        assert "rocksdict" not in libraries(worker)
    assert "a notice" in (tmp_path / "stderr").read_text()


def test_every_worker_draws_its_own_random_numbers() -> None:
    """As with Spark's own daemon, whose workers load numpy after the fork."""
    code = """
import os, sys
import dedup.spark.daemon as daemon
real = daemon.import_module
class Spark:
    def manager():
        for _ in range(2):
            if os.fork() == 0:
                import numpy, random
                print(numpy.random.rand(), random.random(), flush=True)
                os._exit(0)
            os.wait()
daemon.import_module = lambda name: Spark if name == "pyspark.daemon" else real(name)
sys.argv = ["daemon", "pyspark.worker"]
daemon.main()
"""
    done = python("-c", code, env={"OMP_NUM_THREADS": "1"})
    drawn = [line.split() for line in done.stdout.splitlines()]
    assert len(drawn) == 2, done.stderr
    assert len({number for numbers in drawn for number in numbers}) == 4


def test_spark_is_imported_from_its_unpacked_folder(tmp_path: Path) -> None:
    def home(*parts: str) -> str:
        lib = tmp_path.joinpath(*parts, "python", "lib")
        lib.mkdir(parents=True)
        return str(lib / "pyspark.zip")

    def package(*parts: str) -> str:
        folder = tmp_path.joinpath(*parts)
        (folder / "pyspark").mkdir(parents=True, exist_ok=True)
        (folder / "pyspark" / "worker.py").touch()
        return str(folder)

    downloaded, in_download = home("spark-4"), package("spark-4", "python")
    by_pip, in_pip = home("site-packages", "pyspark"), package("site-packages")
    alone = home("alone")
    assert unzipped(["a", downloaded, "b"]) == ["a", in_download, "b"]
    assert unzipped(["a", by_pip, "b"]) == ["a", in_pip, "b"]
    assert unzipped([by_pip, "a", in_pip]) == ["a", in_pip]
    # Another PySpark, which would come first, does not take its place.
    assert unzipped([by_pip, in_download, in_pip]) == [in_pip, in_download, in_pip]
    assert unzipped([alone, "pyspark.zip", ""]) == [alone, "pyspark.zip", ""]

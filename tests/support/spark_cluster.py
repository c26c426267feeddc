"""A standalone Spark cluster on this machine: one Master, Workers of one core and one disk each."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from tests.support.processes import START_TIMEOUT_S, Daemon
from tests.support.quick_spark import QUICK_JAVA
from tests.support.waiting import wait_until

SPARK_HOME = Path(pyspark.__file__).parent
_DAEMON_JAVA = f"{QUICK_JAVA} -Dspark.master.rest.enabled=false"


@dataclass
class Worker(Daemon):
    folder: Path

    @property
    def local_dir(self) -> Path:
        """The disk of its executors."""
        return self.folder / "local"

    def wait_for_executor(self) -> None:
        """Until an executor of this worker has made its folder for blocks."""
        made = wait_until(lambda: any(self.local_dir.glob("*/*/blockmgr-*")), START_TIMEOUT_S)
        assert made, f"no executor: {self.log.read_text()[-3000:]}"

    def cached(self) -> list[Path]:
        """Views and sidecars that executors of this worker keep on their disk."""
        return sorted(self.local_dir.glob("**/dedup-cache-*/*/shard=*/*"))


@dataclass
class Cluster:
    folder: Path
    url: str = ""
    workers: list[Worker] = field(default_factory=list)
    daemons: list[Daemon] = field(default_factory=list)
    made: int = 0

    def start(self, workers: int = 2) -> None:
        master = self._daemon("master", "deploy.master.Master", "--port", "0")
        self.url = master.wait_for(r"Starting Spark master at (spark://\S+)")[1]
        master.wait_for("New state: ALIVE")
        self.add_workers(workers)

    def add_workers(self, count: int = 1) -> list[Worker]:
        """Start more workers, side by side, and wait until the master knows them."""
        added = []
        for _ in range(count):
            self.made += 1
            folder = self.folder / f"worker-{self.made}"
            (folder / "local").mkdir(parents=True)
            # Separate hosts: Spark runs no second copy of a task on the host of the first.
            daemon = self._daemon(
                folder.name, "deploy.worker.Worker", "--cores", "1", "--memory", "1g",
                "-d", str(folder / "work"), self.url,
                host=f"127.0.0.{self.made}",
                SPARK_LOCAL_DIRS=str(folder / "local"),
            )  # fmt: skip
            added.append(Worker(daemon.process, daemon.log, folder))
        self.workers += added
        for worker in added:
            worker.wait_for("Successfully registered with master")
        return added

    def lose(self, worker: Worker) -> int:
        """A worker is gone with its executor and its disk; how many entries its cache had."""
        cached = len(worker.cached())
        assert worker.kill() > 2, "worker, executor, Python"
        shutil.rmtree(worker.folder)
        self.workers.remove(worker)
        return cached

    def stop(self) -> None:
        for daemon in reversed(self.daemons):
            daemon.kill()

    def _daemon(
        self, name: str, main: str, *arguments: str, host: str = "127.0.0.1", **env: str
    ) -> Daemon:
        command = [SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.{main}",
                   "--host", host, "--webui-port", "0", *arguments]  # fmt: skip
        environment = {
            **clean_environment(),
            "SPARK_LAUNCHER_OPTS": QUICK_JAVA,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _DAEMON_JAVA,
            "SPARK_LOG_DIR": str(self.folder),
            **env,
        }
        daemon = Daemon.start(command, self.folder / f"{name}.log", environment)
        self.daemons.append(daemon)
        return daemon


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster of two workers, gone at the end in any case."""
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def clean_environment() -> dict[str, str]:
    """The environment without what would lead Spark elsewhere; a driver's Python is this one."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_", "AWS_")) and name != "PYTHONPATH"
    }
    return kept | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        # S3 clients would look for a cloud around them.
        "AWS_EC2_METADATA_DISABLED": "true",
    }

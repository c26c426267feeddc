"""The query as processes of the machine: started, watched, killed with all that belongs to it."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

from dedup.testing import faults
from tests.kafka.broker import fetch_jars
from tests.kafka.records import end_offsets
from tests.support.processes import ROOT, Daemon
from tests.support.quick_spark import QUICK_SESSION

_SCRIPT = Path(__file__).with_name("copy_orders.py")
_TIMEOUT_S = 400.0


class QueryProcess:
    """One start after another of the query over the same folder, from a topic to a target."""

    def __init__(self, address: str, source: str, target: str, folder: Path, *more: str) -> None:
        self._command = [sys.executable, str(_SCRIPT), address, source, target, str(folder),
                         str(fetch_jars()), *more]  # fmt: skip
        self._address, self._source = address, source
        self.folder, self.checkpoint, self.faults = folder, folder / "checkpoint", folder / "faults"
        self.faults.mkdir()
        self.starts = 0
        self._running: Daemon | None = None

    def start(self) -> int:
        """Start it in its own session; return its process ID."""
        self.starts += 1
        # It lives for seconds, with few rows, on this machine.
        settings = QUICK_SESSION | {"spark.driver.memory": "1g", "spark.log.level": "ERROR"}
        settings["spark.local.dir"] = str(self.folder / "local")
        # The sink sends its rows in several steps, so that a kill finds some of them sent.
        settings["spark.sql.execution.arrow.maxRecordsPerBatch"] = "250"
        flags = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        environment = {
            faults.VARIABLE: str(self.faults),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": shlex.join(["--master", "local[2]", *flags, "pyspark-shell"]),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        log = self.folder / f"log.{self.starts}"
        self._running = Daemon.start(self._command, log, os.environ | environment)
        return self._running.process.pid

    def wait_for(self, so: Callable[[], object]) -> None:
        """Wait until something is so; an OSError ends it if the query ends, or after too long."""
        deadline_s = time.monotonic() + _TIMEOUT_S
        while not so():
            if self._running is not None and (code := self._running.process.poll()) is not None:
                said = self._running.log.read_text(errors="replace")[-3000:]
                raise OSError(f"The query ended with code {code}:\n{said}")
            if time.monotonic() > deadline_s:
                raise OSError(f"The query was not done within {_TIMEOUT_S:.0f} s.")
            time.sleep(0.02)

    def kill(self) -> int:
        """Kill it with all that it started; return how many processes there were.

        Workers have their own process groups and would outlive Spark's Java by some moments.
        """
        running, self._running = self._running, None
        return running.kill() if running else 0

    def newest(self, log: str) -> int:
        """Return the newest micro-batch in a log of the checkpoint, or -1 if the log is empty."""
        folder = self.checkpoint / log
        names = os.listdir(folder) if folder.exists() else []
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def has_read_all(self) -> bool:
        """Whether the newest micro-batch is committed, and reaches the ends of the source."""
        last = self.newest("commits")
        if last < 0 or last != self.newest("offsets"):
            return False
        lines = (self.checkpoint / "offsets" / str(last)).read_text().splitlines()
        found = json.loads(lines[2])[self._source]
        ends = end_offsets(self._address, self._source)
        return [found.get(str(n), 0) for n in range(len(ends))] == ends

"""The query as processes of the machine: started, watched, killed with all that belongs to it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dedup.testing import faults
from tests.kafka.broker import fetch_jars
from tests.kafka.records import end_offsets
from tests.support.quick_spark import QUICK_SESSION
from tests.support.waiting import wait_until

_ROOT = Path(__file__).resolve().parents[3]
_SCRIPT = Path(__file__).with_name("copy_orders.py")


class QueryProcess:
    """One start after another of the query over the same folder.

    Parameters
    ----------
    address : str
        Of the broker.
    source, target : str
        Topics, or another place to write to.
    folder : Path
        Of the query, and of what it prints.
    script : Path, optional
        The query's program.
    more : sequence of str, optional
        Arguments of the program behind these.
    """

    def __init__(
        self,
        address: str,
        source: str,
        target: str,
        folder: Path,
        *,
        script: Path = _SCRIPT,
        more: Sequence[str] = (),
    ) -> None:
        jars = str(fetch_jars())
        self._command = [sys.executable, str(script), address, source, target, str(folder), jars]
        self._command += more
        self.address, self.source, self.target = address, source, target
        self.folder, self.checkpoint = folder, folder / "checkpoint"
        self.faults = folder / "faults"
        self.faults.mkdir()
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None

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
            "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=os.environ | environment,
            )  # fmt: skip
        return self._process.pid

    @property
    def log(self) -> Path:
        """What this start prints."""
        return self.folder / f"log.{self.starts}"

    def check_alive(self) -> None:
        """Raise OSError, with the end of the log, if it has ended on its own."""
        if self._process is not None and self._process.poll() is not None:
            said = self.log.read_text(errors="replace")[-3000:]
            raise OSError(f"The query ended by itself, with code {self._process.poll()}:\n{said}")

    def processes(self) -> list[int]:
        """Return the IDs of all living processes of this start, the newest first."""
        if self._process is None:
            return []
        mine = str(self._process.pid)
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            except OSError:  # it has ended in the meantime
                continue
            if session == mine and state != "Z":
                found.append(int(stat.parent.name))
        return sorted(found, reverse=True)

    def kill(self) -> int:
        """SIGKILL all of it; return how many processes there were.

        Workers have their own process groups and would outlive Spark's Java by some moments.
        """
        killed = set()
        for _ in range(2):  # what a process may have started before it died
            for pid in self.processes():
                try:
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
                except ProcessLookupError:
                    pass
        if self._process is not None:
            self._process.wait()
            assert wait_until(lambda: not self.processes()), "a process outlives SIGKILL"
            self._process = None
        return len(killed)

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
        found = json.loads(lines[2])[self.source]
        ends = end_offsets(self.address, self.source)
        return [found.get(str(n), 0) for n in range(len(ends))] == ends

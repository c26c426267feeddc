"""The processes of a query under faults: started, found, killed, continued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dedup.testing import faults
from tests.support.processes import ROOT, Daemon, members, parent
from tests.support.spark_cluster import Cluster


@dataclass
class Subject:
    """One start of the query after another, over one folder; each has its own session.

    On a cluster, what the workers started for the query belongs to it, the workers do not.
    """

    folder: Path
    config: dict[str, Any]
    cluster: Cluster | None = None
    starts: int = 0
    #: Number of starts whose predecessor committed a micro-batch. It chooses the room for filters.
    turn: int = 0
    committed: int = -1
    process: subprocess.Popen[bytes] | None = None
    #: Process IDs of all starts.
    drivers: set[int] = field(default_factory=set)

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.faults.mkdir(exist_ok=True)
        config = self.folder / "config.json"
        commits = (self.folder / "checkpoint" / "commits").glob("[0-9]*")
        committed = max((int(path.name) for path in commits), default=-1)
        self.turn += committed > self.committed
        self.committed = committed
        given = {**self.config, "folder": str(self.folder), "turn": self.turn}
        config.write_text(json.dumps(given))
        environment = {
            faults.VARIABLE: str(self.faults),
            "SPARK_LOCAL_IP": "127.0.0.1",
            # The query is a module of these tests.
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
        }
        command = [sys.executable, "-m", "tests.faults.query", config]
        self._log = self.folder / f"log.{self.starts}"
        self.process = Daemon.start(command, self._log, os.environ | environment).process
        self.starts += 1
        self.drivers.add(self.process.pid)

    @property
    def faults(self) -> Path:
        return self.folder / "faults"

    def last_words(self) -> str:
        """Return the end of what the last start printed."""
        return self._log.read_text(errors="replace")[-3000:]

    def ended(self) -> int | None:
        """The exit code, None while it runs; what it left running is killed."""
        assert self.process is not None
        code = self.process.poll()
        if code is not None:
            self.kill_all()
        return code

    def processes(self) -> dict[int, str]:
        """Every living process: ``driver``, ``jvm``, ``executor``, ``worker`` or ``daemon``."""
        assert self.process is not None
        workers = [worker.process.pid for worker in self.cluster.workers] if self.cluster else []
        sessions = (self.process.pid, *workers)
        found: dict[int, str] = {}
        for pid in {pid for session in sessions for pid in members(session)} - {*workers}:
            with suppress(OSError):
                found[pid] = self._kind(pid)
        for pid, kind in found.items():
            with suppress(OSError):
                if kind == "daemon" and found.get(parent(pid)) == "daemon":
                    found[pid] = "worker"
        return found

    def _kind(self, pid: int) -> str:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if self.process is not None and pid == self.process.pid:
            return "driver"
        if b"pyspark.worker" in command:
            return "daemon"
        if b"CoarseGrainedExecutorBackend" in command:
            return "executor"
        return "jvm" if b"java" in command.partition(b"\0")[0] else "other"

    def kill_one(self, kind: str, choice: int) -> int | None:
        """SIGKILL one process of a kind; return its ID, or None if none exists."""
        some = sorted(pid for pid, k in self.processes().items() if k == kind)
        if not some:
            return None
        pid = some[choice % len(some)]
        return pid if _signal(pid, signal.SIGKILL) else None

    def kill_all(self, but: int | None = None) -> int:
        """SIGKILL all processes but one; how many there were.

        The daemon goes first: it would take a worker that stands still with it.
        """
        order = ("daemon", "executor", "jvm", "driver", "worker", "other")
        found = sorted(self.processes().items(), key=lambda item: order.index(item[1]))
        return sum(_signal(pid, signal.SIGKILL) for pid, _ in found if pid != but)

    def go_on(self, pid: int) -> bool:
        """Continue a process that stands still."""
        return _signal(pid, signal.SIGCONT)


def _signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True

"""The test's end of a driver: jobs are sent, answers read, and a pause in between used."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from dedup import BatchMetrics
from tests.support.processes import ROOT, members
from tests.support.spark_cluster import Cluster, clean_environment
from tests.support.spark_query import Query, Run

JOB_TIMEOUT_S = 120.0


class DriverProcess:
    """A driver on a cluster; it is started when it is first needed, and again when it has gone."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.process: subprocess.Popen[str] | None = None
        self.jobs = 0

    def ask(self, job: str, *meanwhile: Callable[[], None], **arguments: Any) -> dict[str, Any]:
        """The answer to a job; each `meanwhile` is called while it pauses once."""
        process = self._running()
        self.jobs += 1
        answer = self.folder / f"{self.jobs}.json"
        line = json.dumps({"job": job, "arguments": arguments, "answer": str(answer)})
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()
        for number, action in enumerate(meanwhile):
            self._wait(Path(arguments["folder"], f"paused {number}"), or_else=answer)
            action()
            Path(arguments["folder"], f"go on {number}").touch()
        self._wait(answer)
        found: dict[str, Any] = json.loads(answer.read_text())
        return found

    def kill(self) -> None:
        if self.process is None:
            return
        # The JVM has its own session, and goes when its input is closed.
        for pid in members(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)
        self.process = None

    def _running(self) -> subprocess.Popen[str]:
        if self.process is None:
            log = (self.folder / "driver.log").open("w")
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.driver", self.cluster.url],
                env={**clean_environment(), "PYTHONPATH": str(ROOT)},
                cwd=self.folder, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT,
                text=True, start_new_session=True,
            )  # fmt: skip
        return self.process

    def _wait(self, path: Path, or_else: Path | None = None) -> None:
        assert self.process is not None
        deadline_s = time.monotonic() + JOB_TIMEOUT_S
        while not path.exists():
            if or_else is not None and or_else.exists():
                raise AssertionError(f"it did not pause: {or_else.read_text()[:6000]}")
            ended = self.process.poll()
            if ended is not None or time.monotonic() > deadline_s:
                log = (self.folder / "driver.log").read_text(errors="replace")[-6000:]
                self.kill()
                raise AssertionError(f"no answer (exit {ended}):\n{log}")
            time.sleep(0.02)


def give(folder: Path, tables: Sequence[pa.Table], first: int = 0) -> None:
    """Files of a query's input, one a micro-batch."""
    made = Query(None, folder, {})  # type: ignore[arg-type]  # it only writes files
    made.added = first
    for table in tables:
        made.add_table(table)


def as_run(answer: dict[str, Any]) -> Run:
    """Rows and metrics of an answer, as the oracle takes them."""
    assert "error" not in answer, answer["error"]
    run = Run()
    run.rows = {int(batch): rows for batch, rows in answer["rows"].items()}
    run.metrics = [BatchMetrics(**{"stage_us": {}, **fields}) for fields in answer["metrics"]]
    return run

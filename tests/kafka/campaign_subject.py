"""The query of a campaign in a process of its own, whose session outlives most of its kills.

    python -m tests.kafka.campaign_subject JARS

It reads a `Command` a line from its standard input, runs the query until all its input is done,
however often it fails, and answers with a line that begins with `ANSWER`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from dedup.errors import cause
from dedup.testing import faults
from tests.faults.subject import ROOT, Subject, stands_still
from tests.kafka.sink_query import PRELOAD, SinkQuery
from tests.support.quick_spark import QUICK_SESSION
from tests.support.waiting import readable

ANSWER = "ANSWER "
#: More than all faults of a start together bring about.
_MOST_FAILURES = 16
_SETTINGS = {
    # Several faults may strike one task after the other.
    "spark.master": "local[2,12]",
    "spark.log.level": "OFF",
    "spark.ui.showConsoleProgress": "false",
    # A frozen worker is to live on, until its successor has won.
    "spark.python.task.killTimeout": "120s",
    "spark.sql.streaming.stopTimeout": "4s",
}


@dataclass(frozen=True)
class Command:
    """What a start of the query is given."""

    folder: str
    topic: str
    servers: str
    mode: str
    tasks: int


class SinkSubject(Subject):
    """One session after another, each of which runs query after query."""

    def __init__(self, folder: Path, jars: str) -> None:
        super().__init__(folder, {})
        self._jars = jars

    def start(self) -> None:
        """Start a session."""
        self.faults.mkdir(parents=True, exist_ok=True)
        path = f"{PRELOAD}:{ROOT}:{os.environ.get('PYTHONPATH', '')}"
        own = {faults.VARIABLE: str(self.faults), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": path}
        with open(self.log(self.starts), "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.kafka.campaign_subject", self._jars],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=os.environ | own | {"PYSPARK_PYTHON": sys.executable},
                cwd=self.folder,
            )
        self.starts += 1
        self.drivers.add(self.process.pid)

    def send(self, command: Command) -> None:
        """Let the session run a query."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asdict(command)).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self, timeout_s: float) -> list[str] | None:
        """Return what the query failed with before it was done, None where it is not done yet.

        Raises
        ------
        EOFError
            When the session has died.
        """
        assert self.process is not None
        assert self.process.stdout is not None
        while readable(self.process.stdout.fileno(), timeout_s):
            line = self.process.stdout.readline().decode()
            if not line:
                raise EOFError
            if line.startswith(ANSWER):
                found: list[str] = json.loads(line.removeprefix(ANSWER))
                return found
        return None

    def kill(self, kind: str, choice: int) -> bool:
        """SIGKILL a worker, the process that does the driver's part, or all; whether one was there.

        Parameters
        ----------
        kind : str
            One of `tests.kafka.campaign_plan.RANDOM_KILLS`.
        choice : int
            Which of several.
        """
        if kind == "all":
            return self.kill_all() > 0
        if kind == "worker":
            found = [pid for pid, what in self.processes().items() if what == "worker"]
            return bool(found) and kill(sorted(found)[choice % len(found)])
        found = [pid for pid, what in self.processes().items() if what == "other" and _commits(pid)]
        return bool(found) and kill(max(found))  # a daemon is older than who works for it


def kill(pid: int) -> bool:
    """SIGKILL a process; whether it was there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _commits(pid: int) -> bool:
    try:
        return b"python_streaming_sink_runner" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def main(jars: str) -> None:
    spark = SparkSession.builder.config(map={**QUICK_SESSION, **_SETTINGS, "spark.jars": jars})
    session = spark.getOrCreate()
    queries: dict[str, SinkQuery] = {}
    for line in sys.stdin:
        command = Command(**json.loads(line))
        if command.folder not in queries:
            queries[command.folder] = _query(session, command)
        print(ANSWER + json.dumps(_run(queries[command.folder], command)), flush=True)


def _query(spark: SparkSession, command: Command) -> SinkQuery:
    query = SinkQuery(spark, command.servers, command.topic, Path(command.folder))
    query.options |= {
        "kafka.transaction.timeout.ms": "15000",
        "kafka.socket.timeout.ms": "2000",
        "kafka.reconnect.backoff.max.ms": "200",
        "kafka.log_level": "0",
    }
    return query


def _run(query: SinkQuery, command: Command) -> list[str]:
    """Start the query until its input is done."""
    query.change = lambda rows: rows.repartition(command.tasks, "key")
    query.options["kafka.bootstrap.servers"] = command.servers
    failures: list[str] = []
    overtaken: set[int] = set()
    while len(failures) < _MOST_FAILURES:
        running = query.start(mode=command.mode)
        try:
            while not running.awaitTermination(0.02):  # type: ignore[arg-type]
                frozen = _frozen() - overtaken
                if frozen:  # its query is given up, and the next start of it is to win
                    overtaken |= frozen
                    running.stop()
                    failures.append("given up: a process stands still")
                    break
            else:
                return failures
        except StreamingQueryException as error:
            failures.append(str(cause(error) or error)[:600])
        except Exception as error:  # it does not stop: the driver's part stands still
            print(error, file=sys.stderr, flush=True)
            os._exit(3)
    raise AssertionError(failures)


def _frozen() -> set[int]:
    folder: Any = os.environ[faults.VARIABLE]
    return {pid for _, kind, pid in faults.fired(folder) if kind == "freeze" and stands_still(pid)}


if __name__ == "__main__":
    main(sys.argv[1])

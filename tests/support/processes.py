"""Other Python processes, and what they say."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The folder of package and tests.
ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 240.0
_STOP_TIMEOUT_S = 10.0


def python(
    *arguments: object,
    timeout_s: float = 240,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run this Python in its own process; it may fail."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, env={**os.environ, **(env or {})},
        capture_output=True, text=True, check=False, timeout=timeout_s,
    )  # fmt: skip


def dedup(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return python("-m", "dedup.cli.main", *arguments, env=env)


def run_python(code: str, *args: object, timeout_s: float = 240, **env: str) -> Any:
    """Run code in another Python, which can import these tests; return its last line of JSON."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH")]
    found = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = python("-c", code, *args, timeout_s=timeout_s, env=found | env)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return json.loads(done.stdout.strip().splitlines()[-1])


@dataclass
class Daemon:
    """A process with its own session, so that all it starts can be found and ended with it."""

    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, command: Sequence[object], log: Path, env: Mapping[str, str]) -> Daemon:
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*map(str, command)], env=env, stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        return Daemon(process, log)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """What the log says, once it does."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while True:
            text = self.log.read_text(errors="replace")
            if found := re.search(pattern, text):
                return found
            ended = self.process.poll()
            if ended is not None or time.monotonic() > deadline_s:
                raise RuntimeError(
                    f"{self.log.name}: no {pattern!r} (exit {ended}):\n{text[-3000:]}"
                )
            time.sleep(0.05)

    def kill(self) -> int:
        """End it and all its descendants as the loss of a machine would; how many there were."""
        killed: set[int] = set()
        deadline_s = time.monotonic() + _STOP_TIMEOUT_S
        while alive := members(self.process.pid):
            assert time.monotonic() < deadline_s, f"{alive} cannot be killed"
            for pid in alive:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
            self.process.poll()
            time.sleep(0.02)
        self.process.wait(_STOP_TIMEOUT_S)
        return len(killed)


def stat_of(pid: int | str) -> list[str]:
    """Return what Linux says of a process: state, parent, process group, session, and more."""
    # The command's name, in parentheses, may hold anything.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def members(session_id: int) -> list[int]:
    """Return the living processes of a session: a daemon, and all that it started."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError, IndexError):
            state, _, _, session = stat_of(pid)[:4]
            if int(session) == session_id and state != "Z":
                found.append(int(pid))
    return found


def parent(pid: int) -> int:
    """Return the process that started a process."""
    return int(stat_of(pid)[1])


def stands_still(pid: int) -> bool:
    """Return whether a process was stopped by SIGSTOP."""
    try:
        return stat_of(pid)[0] == "T"
    except OSError:
        return False

"""CPU time of a local session's processes, from Linux's /proc: the JVM by thread, the workers."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


@dataclass
class Cpu:
    """CPU milliseconds between two looks.

    Parameters
    ----------
    jvm : int
        Process ID of the session's JVM; Python workers are its descendants.
    """

    jvm: int
    last: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, spark: SparkSession) -> Cpu:
        """The processes of a session on this machine."""
        jvm: Any = spark.sparkContext._jvm
        return cls(int(jvm.java.lang.ProcessHandle.current().pid()))

    def lap(self) -> dict[str, Any]:
        """CPU ms since the last look: ``jvm``, ``python``, and the JVM's live ``threads``."""
        now = self._now()
        before, self.last = self.last or now, now
        threads: dict[str, float] = defaultdict(float)
        for number, (name, spent) in now["threads"].items():
            _, already = before["threads"].get(number, (name, 0.0))
            threads[name] += spent - already
        return {
            "jvm": now["jvm"] - before["jvm"],
            "python": now["python"] - before["python"],
            "threads": {name: spent for name, spent in threads.items() if spent},
        }

    def _now(self) -> dict[str, Any]:
        parents = {int(entry): _stat(Path("/proc", entry)) for entry in os.listdir("/proc")
                   if entry.isdigit()}  # fmt: skip
        daemons = {pid for pid, stat in parents.items() if stat and stat[1] == self.jvm}
        python = 0.0
        for stat in parents.values():
            # Workers that have ended are in the daemon's sum over its children.
            if stat and (stat[1] in daemons or stat[1] == self.jvm):
                python += stat[2] + (stat[3] if stat[1] == self.jvm else 0.0)
        threads = {}
        for entry in Path(f"/proc/{self.jvm}/task").iterdir():
            stat = _stat(entry)
            if stat:
                threads[int(entry.name)] = (_group(stat[0]), stat[2])
        own = _stat(Path(f"/proc/{self.jvm}"))
        return {"jvm": own[2] if own else 0.0, "python": python, "threads": threads}


def _stat(folder: Path) -> tuple[str, int, float, float] | None:
    """Name, parent, CPU ms of the process and its ended children; None if it is gone."""
    try:
        text = (folder / "stat").read_text()
    except OSError:
        return None
    name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
    own, ended = int(rest[11]) + int(rest[12]), int(rest[13]) + int(rest[14])
    return name, int(rest[1]), own * _TICK_MS, ended * _TICK_MS


def _group(name: str) -> str:
    """Threads of one kind share a name: without its number."""
    return re.sub(r"[\s#\d-]+$", "", name)

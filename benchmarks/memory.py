"""Memory of this process's descendants, the JVM and the Python workers apart. Linux only."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

_KINDS = {"java": "jvm", "pyspark.daemon": "workers", "pyspark.worker": "workers"}


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes, summed over processes of one kind.

    Parameters
    ----------
    own_bytes : int
        Anonymous memory, shared pages counted in parts: what only the end of the process gives
        back.
    mapped_bytes : int
        Files in the page cache that are mapped: the kernel takes them back when it needs room.
    processes : int
    """

    own_bytes: int = 0
    mapped_bytes: int = 0
    processes: int = 0


def usage(*kinds: str) -> dict[str, Usage]:
    """Memory now of all descendants of this process: of ``jvm`` and ``workers``, or of one."""
    found = {kind: Usage() for kind in kinds or ("jvm", "workers")}
    for pid in _descendants(os.getpid()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            kind = next((k for name, k in _KINDS.items() if name in command), None)
            if kind not in found:
                continue
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        kb = {
            line.split(":")[0]: int(line.split()[1])
            for line in rollup.splitlines()
            if line.startswith("Pss")
        }
        before = found[kind]
        found[kind] = Usage(
            before.own_bytes + 1024 * (kb["Pss_Anon"] + kb["Pss_Shmem"]),
            before.mapped_bytes + 1024 * kb["Pss_File"],
            before.processes + 1,
        )
    return found


@dataclass
class Sampler:
    """Greatest usage of the workers while it is entered, looked at every ``every_s`` seconds."""

    every_s: float = 0.2
    peak: Usage = field(default_factory=Usage)
    _done: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Sampler:
        self.peak = usage("workers")["workers"]
        self._done.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        assert self._thread is not None
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(self.every_s):
            now, top = usage("workers")["workers"], self.peak
            self.peak = Usage(
                max(top.own_bytes, now.own_bytes),
                max(top.mapped_bytes, now.mapped_bytes),
                max(top.processes, now.processes),
            )


def _descendants(root: int) -> list[int]:
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            children[int(stat.rsplit(")", 1)[1].split()[1])].append(int(entry.name))
    found, todo = [], [root]
    while todo:
        for child in children[todo.pop()]:
            found.append(child)
            todo.append(child)
    return found

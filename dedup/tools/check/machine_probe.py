"""Facts about the machine of a Python process: releases, local disks, and servers in reach.

These functions travel to executors by value, because the package may be missing there. So they
use nothing but the standard library and `local_folders`, which travels with them, and return JSON.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Any

from dedup.spark.machine import local_folders

LIBRARIES = ("pyspark", "pandas", "pyarrow", "numpy", "rocksdict")
_SERVER_TIMEOUT_S = 5.0


def machine_facts(servers: Sequence[str]) -> dict[str, Any]:
    """Return facts about this process and its machine, as values of JSON."""
    return {
        "host": socket.gethostname(),
        # The parent is the daemon of an executor's Python workers.
        "process": f"{socket.gethostname()}:{os.getppid()}",
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "libraries": {name: release_of(name) for name in LIBRARIES},
        "package": release_of("dedup"),
        "kernel": _attempt(lambda: import_module("dedup.kernel").PATH)[0],
        "folders": [folder_facts(folder) for folder in local_folders()],
        "servers": {server: _attempt(partial(connect, server))[1] for server in servers},
    }


def release_of(name: str) -> dict[str, str | None]:
    """Return the release of a module, or the reason why it cannot be imported."""
    module, problem = _attempt(partial(import_module, name))
    release = getattr(module, "__version__", None) or _attempt(partial(version, name))[0]
    return {"release": release and str(release), "problem": problem}


def folder_facts(folder: str) -> dict[str, Any]:
    """Return medium and free bytes of a folder, and the errors of what a process does there."""
    place = os.path.join(folder, f"dedup-probe-{uuid.uuid4().hex}")
    one, other = os.path.join(place, "one"), os.path.join(place, "other")

    def write() -> None:
        os.mkdir(place)
        with open(one, "xb") as file:
            file.write(b"probe")
            file.flush()
            os.fsync(file.fileno())

    def sync() -> None:
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    facts: dict[str, Any] = {"path": folder, "medium": _medium(folder)}
    facts["free_bytes"] = _attempt(lambda: _free_bytes(folder))[0]
    facts["write"] = _attempt(write)[1]
    if facts["write"] is None:
        facts["link"] = _attempt(lambda: os.link(one, other))[1]
        facts["rename"] = _attempt(lambda: os.rename(one, one + "-renamed"))[1]
        facts["sync"] = _attempt(sync)[1]
    for path in (one, one + "-renamed", other):
        _attempt(partial(os.unlink, path))
    _attempt(lambda: os.rmdir(place))
    return facts


def executor_facts(
    servers: Sequence[str], pause_s: float, root_facts: Callable[[], Any] | None
) -> Callable[[int], str]:
    """Return a function that returns the facts of an executor as JSON, for a column of numbers.

    A task lasts `pause_s`, so that Spark gives tasks to all executors. `root_facts` needs the
    package.
    """

    def facts(_: int) -> str:
        began_s = time.monotonic()
        found = machine_facts(servers)
        if root_facts is not None and found["package"]["problem"] is None:
            found["root"], found["root_problem"] = _attempt(root_facts)
        time.sleep(max(0.0, pause_s - (time.monotonic() - began_s)))
        return json.dumps(found)

    return facts


def write_for_another(batches: Iterator[Any]) -> Iterator[Any]:
    """Write a file for `read_of_another`, which runs in another process of the same task."""
    import pyarrow as pa

    for _ in batches:
        descriptor, path = tempfile.mkstemp(prefix="dedup-probe-", dir=local_folders()[0])
        os.close(descriptor)
        yield pa.RecordBatch.from_pydict({"path": [path]})


def read_of_another(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    for batch in batches:
        for path in batch.column(0).to_pylist():
            is_seen = os.path.exists(path)
            if is_seen:
                os.unlink(path)
            yield pa.RecordBatch.from_pydict({"host": [socket.gethostname()], "seen": [is_seen]})


def _attempt(act: Callable[[], Any]) -> tuple[Any, str | None]:
    """Return a result and None, or None and the error as a text."""
    try:
        return act(), None
    except Exception as error:
        return None, f"{type(error).__name__}: {error}".rstrip(": ")


def connect(server: str) -> None:
    """Open a connection to ``host:port`` and close it, or raise OSError."""
    host, _, port = server.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), _SERVER_TIMEOUT_S).close()


def _free_bytes(folder: str) -> int:
    space = os.statvfs(folder)
    return space.f_bavail * space.f_frsize


def _medium(folder: str) -> str | None:
    """Return the type of a folder's file system, such as ``ext4``, or None if it is unknown."""

    def kind() -> str:
        here, best = os.path.realpath(folder), ("", "")
        with open("/proc/self/mounts") as mounts:
            for _, point, kind, *_rest in (line.split() for line in mounts):
                if (here + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best[0]):
                    best = point, kind
        return best[1]

    return _attempt(kind)[0] or None

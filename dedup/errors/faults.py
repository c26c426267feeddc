"""Named points at which a test can make this process fail, before and after each durable step.

Off, a point is one comparison. It is on in a process that starts with the environment variable
``DEDUP_FAULTS`` naming a folder: a file ``<point>~<number>~<kind>`` in there makes the next visit
to the point fail. Before it does, the file is renamed to ``fired~<point>~<number>~<kind>~<pid>``,
so that each fault strikes one process, once, and can be shown to have struck. Several files of one
point are taken in the order of their numbers, one visit each.
"""

from __future__ import annotations

import errno
import os
import signal
import time

VARIABLE = "DEDUP_FAULTS"

#: Where a process can be made to fail, and what has just been done or is about to be.
POINTS = {
    "pack.begin": "nothing is read yet",
    "scan.begin": "part of an input file is about to be read by a task",
    "bodies.write": "rows are about to be written to local disk, in place of travelling",
    "pack.end": "all rows of a map task are sent",
    "certificate.put.before": "the catalog may be new",
    "certificate.put.after": "the catalog has its birth certificate",
    "group.begin": "a shard's state and rows are there, unread",
    "group.read": "they are decoded",
    "lineage.put.after": "a new run has said what it descends from",
    "sweep.before": "orphans are known, and about to be deleted",
    "sweep.after": "they are deleted",
    "backup.put.before": "the copy of the shard's memory is about to be replaced",
    "backup.put.after": "it is replaced",
    "view.build.before": "a segment is linked or fetched, its view not built",
    "view.build.after": "the view is built aside",
    "view.publish.after": "the view is in its place",
    "sidecar.fetch.after": "a sidecar is fetched, not yet in its place",
    "merge.read.after": "an input of a merge is read",
    "segment.chunk": "part of a segment is written to local disk",
    "segment.write.after": "a segment is whole on local disk",
    "sidecar.put.before": "nothing of a segment is at the root",
    "sidecar.put.after": "its sidecar is at the root",
    "segment.put.after": "the segment is at the root, and named nowhere",
    "publish.synced": "content is durable under a temporary name",
    "publish.named": "it has its name, the folder is not synced",
    "upload.before": "an object store is about to be written",
    "upload.after": "it was written, its size not yet read back",
    "delete.before": "expired segments are about to be deleted",
    "delete.between": "they are gone, their sidecars are not",
    "delete.after": "all of them are gone, and still pending in the state",
    "pending_list.put.before": "names of expired segments are about to leave the state",
    "pending_list.put.after": "they are at the root, and in the state as well",
    "group.judged": "verdicts and next state are there, not returned",
    "group.update.before": "the next state is encoded",
    "group.update.after": "Spark has it, the rows are not returned",
    "group.end": "the rows are returned",
    "unpack.begin": "nothing is unpacked yet",
    "unpack.end": "all rows of a task are handed on",
    "files.group": "a task has written part of a file of the output",
    "files.written": "its files are whole and durable, and nobody knows their names",
    "files.task.begin": "a task of the file sink has read nothing yet",
    "files.uploaded": "its files are in the object store, below _staging",
    "files.task.end": "its files are staged, its task has not ended",
    "files.driver.before": "all tasks have ended, the driver has looked at nothing yet",
    "files.laid.out": "the files of a micro-batch are in their shape, and nobody sees them",
    "files.planned": "it is decided what a micro-batch consists of, and nothing is visible",
    "files.copied": "a file of it is visible in the object store, others may not be",
    "files.published": "all of it is visible",
    "files.driver.published": "the driver has published, what was staged is still there",
    "files.driver.after": "the micro-batch is published, Spark has not logged it",
    "files.collected": "the driver knows the files of a micro-batch, and none is in its place",
    "quarantine.before": "poison records are found, and none of them is written",
    "quarantine.after": "they are set aside, and not yet left out of the rows",
    "sink.staged": "a micro-batch is written aside",
    "sink.side.published": "its side output is in its place, the output is not",
    "sink.published": "the output is in its place, Spark has not logged the micro-batch",
    "kafka.task.begin": "a task of the Kafka sink has read nothing yet",
    "kafka.init.before": "a slot's transactional ID is about to be initialised",
    "kafka.init.after": "whoever had it is fenced, the markers are unread",
    "kafka.rows.first": "the first rows are with the broker, in an open transaction",
    "kafka.rows.sent": "all rows are handed to the producer",
    "kafka.marker.before": "the marker is about to be sent",
    "kafka.marker.after": "rows and marker are with the broker, uncommitted",
    "kafka.commit.before": "the transaction is about to be committed",
    "kafka.commit.after": "it is committed, and Spark does not know",
    "kafka.task.end": "the slice is published, its task has not ended",
    "kafka.stage.before": "a slice is about to be staged",
    "kafka.stage.after": "it is staged, and Spark does not know",
    "kafka.driver.before": "all tasks have ended, the driver owns no slot yet",
    "kafka.manifest.before": "a whole micro-batch is staged, and no manifest names its slices",
    "kafka.manifest.after": "the manifest is there, nothing is published",
    "kafka.driver.published": "the driver has published, what was staged is still there",
    "kafka.driver.after": "the micro-batch is published, Spark has not logged it",
    "postgres.task.begin": "a task of the PostgreSQL sink has read nothing yet",
    "postgres.own.before": "slots are about to be owned",
    "postgres.own.after": "earlier owners are refused from now on",
    "postgres.begun": "a transaction is open, and its slot locked",
    "postgres.rows.sent": "the server has all rows of a slice, uncommitted",
    "postgres.rows.moved": "staged rows are in the table, uncommitted",
    "postgres.marker.before": "the marker is about to be written",
    "postgres.marker.after": "rows and marker are with the server, uncommitted",
    "postgres.commit.before": "the transaction is about to be committed",
    "postgres.commit.after": "it is committed, and Spark does not know",
    "postgres.task.end": "the slice is published or staged, its task has not ended",
    "postgres.stage.before": "a slice is about to be staged",
    "postgres.stage.after": "it is staged, and Spark does not know",
    "postgres.driver.before": "all tasks have ended, the driver owns no slot yet",
    "postgres.driver.published": "the driver has published, the checkpoint does not say so",
    "postgres.driver.after": "the micro-batch is published, Spark has not logged it",
    "lakehouse.task.begin": "a task of a table's sink has read nothing yet",
    "lakehouse.stage.before": "rows are about to be written to data files",
    "lakehouse.stage.after": "they are written, and Spark does not know",
    "lakehouse.task.end": "all data files are written, the task has not ended",
    "lakehouse.driver.before": "all tasks have ended, the table is unread",
    "lakehouse.marker.read": "the driver has read the table and its marker",
    "lakehouse.commit.before": "data files and marker are about to be committed",
    "lakehouse.commit.after": "they are committed, and Spark does not know",
    "lakehouse.driver.published": "the micro-batch is there, the checkpoint does not say so",
    "lakehouse.driver.after": "the micro-batch is published, Spark has not logged it",
}  # fmt: skip

#: What a fault does: nothing (one visit goes by), SIGKILL, an exception, a full disk, a refusal,
#: SIGSTOP until someone continues the process, half a second of sleep, one flipped bit in the file,
#: and a wait that lasts until `let_go`, also where the process that started this one is dead (a
#: stopped process would be ended with it).
KINDS = ("skip", "kill", "raise", "enospc", "eacces", "freeze", "slow", "corrupt", "outlive")

#: A test that failed lets nobody go.
_OUTLIVE_S = 600.0

_folder = os.environ.get(VARIABLE)


class FaultInjected(RuntimeError):
    """A test asked for this failure."""


def point(name: str, path: str | os.PathLike[str] | None = None) -> None:
    """Fail here if a test says so.

    Parameters
    ----------
    name : str
        One of `POINTS`.
    path : path, optional
        The file that the point is about, for faults that damage it.
    """
    if _folder is not None:
        _visit(_folder, name, path)


def arm(folder: str | os.PathLike[str], name: str, kind: str, number: int = 0) -> None:
    """Let the next visit to a point fail, in any process that was started with this folder."""
    if name not in POINTS or kind not in KINDS:
        raise ValueError(f"there is no fault {kind!r} at {name!r}")
    with open(os.path.join(folder, f"{name}~{number:06d}~{kind}"), "x"):
        pass


def fired(folder: str | os.PathLike[str]) -> list[tuple[str, str, int]]:
    """Point, kind and process ID of every fault that struck, visits that went by left out."""
    found = (name.split("~") for name in sorted(os.listdir(folder)) if name.startswith("fired~"))
    return [(name, kind, int(pid)) for _, name, _, kind, pid in found if kind != "skip"]


def let_go(folder: str | os.PathLike[str], pid: int) -> None:
    """Let a process go on that waits at a fault of kind ``outlive``."""
    with open(os.path.join(folder, f"go~{pid}"), "x"):
        pass


def _visit(folder: str, name: str, path: str | os.PathLike[str] | None) -> None:
    for armed in sorted(entry for entry in os.listdir(folder) if entry.startswith(f"{name}~")):
        try:
            os.rename(
                os.path.join(folder, armed), os.path.join(folder, f"fired~{armed}~{os.getpid()}")
            )
        except FileNotFoundError:  # another process was first
            continue
        kind = armed.rpartition("~")[2]
        if kind == "outlive":
            _outlive(folder)
        _strike(kind, name, path)
        return


def _outlive(folder: str) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    go, end_s = os.path.join(folder, f"go~{os.getpid()}"), time.monotonic() + _OUTLIVE_S
    while not os.path.exists(go) and time.monotonic() < end_s:
        time.sleep(0.02)


def _strike(kind: str, name: str, path: str | os.PathLike[str] | None) -> None:
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "raise":
        raise FaultInjected(f"made to fail at {name}")
    elif kind == "enospc":
        raise OSError(errno.ENOSPC, f"made to be full at {name}")
    elif kind == "eacces":
        raise PermissionError(errno.EACCES, f"made to be refused at {name}")
    elif kind == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "slow":
        time.sleep(0.5)
    elif kind == "corrupt":
        if path is None:
            raise ValueError(f"there is no file to damage at {name}")
        with open(path, "r+b") as file:
            middle = os.fstat(file.fileno()).st_size // 2
            file.seek(middle)
            byte = file.read(1)
            file.seek(middle)
            file.write(bytes([byte[0] ^ 1]))

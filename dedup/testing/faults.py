"""Makes a process fail at a named step, for tests.

The package calls `dedup.errors.faults.point` at each step in `POINTS`. If the environment variable
``DEDUP_FAULTS`` names a folder when a process starts, the process looks into the folder at each
step. `arm` adds a file ``<point>~<number>~<kind>`` to the folder, and the next process that reaches
the step fails. Before the process fails, it renames the file to
``fired~<point>~<number>~<kind>~<pid>``. So a fault strikes only one process and only once, and
leaves proof. If several files name one step, each visit takes the file with the lowest number.
"""

from __future__ import annotations

import errno
import os
import signal
import time

VARIABLE = "DEDUP_FAULTS"

#: Steps at which tests can make a process fail, and the state of the work at each step.
POINTS = {
    "pack.begin": "a map task has read nothing yet",
    "scan.begin": "a task is about to read part of an input file",
    "bodies.write": "a task is about to write rows to local disk instead of shuffling them",
    "pack.end": "a map task has sent all its rows",
    "certificate.put.before": "the birth certificate is about to be written",
    "certificate.put.after": "the birth certificate is written",
    "group.begin": "a shard's state and rows have arrived and are not decoded",
    "group.read": "a shard's state and rows are decoded",
    "lineage.put.after": "a new run has recorded its parent run",
    "sweep.before": "orphans are about to be deleted",
    "sweep.after": "orphans are deleted",
    "backup.put.before": "the backup of the manifest is about to be replaced",
    "backup.put.after": "the backup of the manifest is replaced",
    "view.build.before": "a segment is linked or fetched, its view not built",
    "view.build.after": "the view is built under a temporary name",
    "view.publish.after": "the view has its final name",
    "sidecar.fetch.after": "a sidecar is fetched under a temporary name",
    "sidecar.read.after": "a filter is read from its sidecar, to return to the state",
    "merge.read.after": "an input of a merge is read",
    "segment.chunk": "part of a segment is written to local disk",
    "segment.write.after": "a segment is complete on local disk",
    "sidecar.put.before": "nothing of a segment is at the root",
    "sidecar.put.after": "the segment's sidecar is at the root",
    "segment.put.after": "the segment is at the root, and no manifest names it",
    "publish.synced": "content is durable under a temporary name",
    "publish.named": "content has its final name, the folder is not synced",
    "upload.before": "an object store is about to be written",
    "upload.after": "the object is written, its size not yet read back",
    "delete.before": "expired segments are about to be deleted",
    "delete.between": "expired segments are deleted, their sidecars are not",
    "delete.after": "segments and sidecars are deleted, the state still lists them",
    "pending_list.put.before": "names of expired segments are about to leave the state",
    "pending_list.put.after": "the names are at the root and still in the state",
    "group.judged": "verdicts and next state are computed, not returned",
    "group.update.before": "the next state is encoded",
    "group.update.after": "Spark has the next state, the rows are not returned",
    "group.end": "the rows are returned",
    "unpack.begin": "nothing is unpacked yet",
    "unpack.end": "a task has returned all its rows",
    "files.group": "a task has written part of a file of the output",
    "files.written": "the task's files are complete and durable, the driver does not know them",
    "files.task.begin": "a task of the file sink has read nothing yet",
    "files.uploaded": "the task's files are in the object store, below _staging",
    "files.task.end": "the task has staged its files and has not ended",
    "files.driver.before": "all tasks have ended, the driver has read nothing yet",
    "files.laid.out": "the files of a micro-batch are named and invisible",
    "files.planned": "the plan of a micro-batch is written, nothing is visible",
    "files.copied": "one file of the micro-batch is visible in the object store, others may not be",
    "files.published": "all files of the micro-batch are visible",
    "files.driver.published": "the driver has published, staged files are not deleted",
    "files.driver.after": "the micro-batch is published, Spark has not logged it",
    "files.collected": "the driver knows the files of a micro-batch, none has its final name",
    "quarantine.before": "poison records are detected, none is written",
    "quarantine.after": "poison records are quarantined, not yet removed from the rows",
    "sink.staged": "a micro-batch is staged",
    "sink.side.published": "the side output is published, the output is not",
    "sink.published": "the output is published, Spark has not logged the micro-batch",
    "kafka.task.begin": "a task of the Kafka sink has read nothing yet",
    "kafka.init.before": "a slot's transactional ID is about to be initialised",
    "kafka.init.after": "earlier producers of the slot are fenced, the markers are unread",
    "kafka.rows.first": "the broker has the first rows, in an open transaction",
    "kafka.rows.sent": "the producer has all rows",
    "kafka.marker.before": "the marker is about to be sent",
    "kafka.marker.after": "the broker has rows and marker, uncommitted",
    "kafka.commit.before": "the transaction is about to be committed",
    "kafka.commit.after": "the transaction is committed, Spark does not know",
    "kafka.task.end": "the slice is published, the task has not ended",
    "kafka.stage.before": "a slice is about to be staged",
    "kafka.stage.after": "the slice is staged, Spark does not know",
    "kafka.driver.before": "all tasks have ended, the driver owns no slot yet",
    "kafka.manifest.before": "a micro-batch is staged, no manifest names its slices",
    "kafka.manifest.after": "the manifest is written, nothing is published",
    "kafka.driver.published": "the driver has published, staged files are not deleted",
    "kafka.driver.after": "the micro-batch is published, Spark has not logged it",
    "kit.task.begin": "a task of a sink on the kit has read nothing yet",
    "kit.own.before": "slots are about to be owned",
    "kit.own.after": "slots are owned, earlier owners are fenced",
    "kit.begun": "a transaction is open, its slot is locked",
    "kit.rows.sent": "the sink has all rows of a slice, uncommitted",
    "kit.marker.before": "the marker is about to be written",
    "kit.marker.after": "the sink has rows and marker, uncommitted",
    "kit.commit.before": "the transaction is about to be committed",
    "kit.commit.after": "the transaction is committed, Spark does not know",
    "kit.task.end": "the slice is published or staged, the task has not ended",
    "kit.stage.before": "a slice is about to be staged",
    "kit.stage.after": "the slice is staged, Spark does not know",
    "kit.driver.before": "all tasks have ended, the driver owns no slot yet",
    "kit.driver.published": "the driver has published, the checkpoint does not show it",
    "kit.driver.after": "the micro-batch is published, Spark has not logged it",
    "kit.manifest.before": "a micro-batch is staged, no manifest names its slices",
    "kit.manifest.after": "the manifest is written, nothing is sent",
    "kit.send.before": "the rows of the manifest are about to be sent, again or for the first time",
    "kit.send.part": "some of the rows are sent, or all of them",
    "kit.send.after": "all rows are sent, no marker says so",
    "stable.staged": "a task has staged its rows, the driver does not know",
    "stable.manifest.before": "the rows of a micro-batch are staged, no manifest names them",
    "stable.manifest.after": "the rows are decided, the user's function has not got them",
    "stable.called": "the user's function has returned, Spark has not logged the micro-batch",
    "once.begun": "an attempt is recorded, the user's function has not been called",
    "once.called": "the user's function has returned, no record shows it",
    "once.done": "the call is recorded as done, Spark has not logged the micro-batch",
    "lakehouse.task.begin": "a task of a lakehouse sink has read nothing yet",
    "lakehouse.stage.before": "rows are about to be written to data files",
    "lakehouse.stage.after": "data files are written, Spark does not know",
    "lakehouse.task.end": "all data files are written, the task has not ended",
    "lakehouse.driver.before": "all tasks have ended, the table is unread",
    "lakehouse.marker.read": "the driver has read the table and its marker",
    "lakehouse.commit.before": "data files and marker are about to be committed",
    "lakehouse.commit.after": "data files and marker are committed, Spark does not know",
    "lakehouse.driver.published": "the micro-batch is committed, Spark has not logged it",
    "lakehouse.driver.after": "the micro-batch is published, Spark has not logged it",
    "bootstrap.begun": "the checkpoint names a query that lacks its certificate",
    "history.shard.after": "a shard has learned its history, the driver does not know yet",
    "bootstrap.learned": "all shards have learned their history, it is only in segments",
    "bootstrap.written": "catalog and checkpoint are complete",
    "rebuild.begun": "the new catalog is closed, nothing else is written",
    "rebuild.written": "the new catalog is complete and closed, the old one is open",
    "rebuild.closed": "old and new catalog are closed, the old query may still run",
    "rebuild.checked": "old and new catalog are closed, the old query does not run",
    "rebuild.opened": "the new catalog is open",
    "reopen.closed": "the new catalog is closed again, the old one is still closed",
}  # fmt: skip

#: Kinds of faults. In this order they cause nothing at one visit, SIGKILL, an exception, a full
#: disk, a denied access, SIGSTOP until SIGCONT, half a second of sleep, one flipped bit in the
#: file, and a wait until `let_go`. If the parent dies, a waiting process survives, but a stopped
#: process dies too.
KINDS = ("skip", "kill", "raise", "enospc", "eacces", "freeze", "slow", "corrupt", "outlive")

#: Longest wait for `let_go`, because a test that failed never calls it.
_OUTLIVE_S = 600.0


class FaultInjected(RuntimeError):
    """Raised by a fault of kind ``raise``."""


def arm(folder: str | os.PathLike[str], name: str, kind: str, number: int = 0) -> None:
    """Make the next process that reaches step ``name`` fail, if it started with ``folder``."""
    if name not in POINTS or kind not in KINDS:
        raise ValueError(f"unknown fault {kind!r} at {name!r}")
    with open(os.path.join(folder, f"{name}~{number:06d}~{kind}"), "x"):
        pass


def fired(folder: str | os.PathLike[str]) -> list[tuple[str, str, int]]:
    """Return step, kind and process ID of every fault that struck, except kind ``skip``."""
    names = (name.split("~") for name in sorted(os.listdir(folder)) if name.startswith("fired~"))
    return [(name, kind, int(pid)) for _, name, _, kind, pid in names if kind != "skip"]


def let_go(folder: str | os.PathLike[str], pid: int) -> None:
    """Let a process continue that waits at a fault of kind ``outlive``."""
    with open(os.path.join(folder, f"go~{pid}"), "x"):
        pass


def visit(folder: str, name: str, path: str | os.PathLike[str] | None) -> None:
    """Cause the fault that is armed at step ``name``. `dedup.errors.faults.point` calls this."""
    POINTS[name]  # a step without a sentence is a mistake
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
            raise ValueError(f"no file to damage at {name}")
        with open(path, "r+b") as file:
            middle = os.fstat(file.fileno()).st_size // 2
            file.seek(middle)
            byte = file.read(1)
            file.seek(middle)
            file.write(bytes([byte[0] ^ 1]))

"""Figures of every sink's work in a micro-batch, and their way to listeners.

Spark has no channel from a Python sink to a listener, and runs the sink's driver part in another
process. That process keeps the last figures in a file, in this user's folder below the temporary
folder of the driver's machine. Listeners on that machine read the file. Errors here never affect a
query.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from dedup.core.metrics import fields_of

logger = logging.getLogger("dedup")

#: Number of micro-batches that a file keeps, because listeners get events late.
_KEPT = 20
#: Counts of a failed attempt, which count for the attempt that succeeds.
_OF_FAILED = ("retries", "fenced")
#: Files of queries that did nothing for so long are deleted.
_FORGOTTEN_S = 7 * 86_400


@dataclass(slots=True)
class WorkCounts:
    """What a task or the driver counts while it works for a sink."""

    rows: int = 0
    bytes: int = 0
    retries: int = 0
    fenced: int = 0
    us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkMetrics:
    """Metrics of one sink in one micro-batch.

    Parameters
    ----------
    sink : str
        The sink's option `name`.
    rows, bytes : int
        Rows of the micro-batch, and their size as Arrow bytes, before the sink encodes them. Rows
        that were published before count as well.
    retries : int
        Attempts beyond the first: of tasks, and of the driver's decision.
    fenced : int
        How often an attempt, or the driver, lost a slot to another owner. The next task of a slot
        may run in another worker, which fences the worker before. So this is normal.
    undelivered : int
        Records that mode ``none`` of the Kafka sink has lost since the micro-batch before.
    task_us, driver_us : int
        Time of the tasks in the sink, summed, and of the driver, in microseconds. The time of tasks
        includes the plan that computes their rows.
    """

    query_id: str
    run_id: str
    batch_id: int
    sink: str
    rows: int
    bytes: int
    retries: int
    fenced: int
    undelivered: int
    task_us: int
    driver_us: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: object) -> SinkMetrics:
        """Return the metrics that `to_json` returned, or raise ValueError if they are invalid."""
        return SinkMetrics(**fields_of(SinkMetrics, value))


_current: ContextVar[WorkCounts | None] = ContextVar("dedup_sink_figures", default=None)


@contextmanager
def measured() -> Iterator[WorkCounts]:
    """Count what happens within the block, and its time."""
    figures = WorkCounts()
    token, began_ns = _current.set(figures), time.perf_counter_ns()
    try:
        yield figures
    finally:
        _current.reset(token)
        figures.us = (time.perf_counter_ns() - began_ns) // 1000


def note_retry() -> None:
    """Count that the work in progress tries again."""
    if (figures := _current.get()) is not None:
        figures.retries += 1


def note_fenced() -> None:
    """Count that the work in progress has lost a slot to another owner."""
    if (figures := _current.get()) is not None:
        figures.fenced += 1


def counted(rows: Iterable[pa.RecordBatch], figures: WorkCounts) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        figures.rows += batch.num_rows
        figures.bytes += batch.nbytes
        yield batch


@dataclass(frozen=True, slots=True)
class FiguresFile:
    """The file with the last figures of one sink of one query."""

    path: Path
    #: The figures by micro-batch, oldest first. A micro-batch that failed has no `rows`.
    entries: list[dict[str, Any]] = field(default_factory=list)

    @staticmethod
    def of(query_id: str, sink: str) -> FiguresFile:
        path = _folder() / f"{query_id}.{sink}.json"
        try:
            return FiguresFile(path, json.loads(path.read_bytes())["batches"])
        except (OSError, ValueError, KeyError, TypeError):
            return FiguresFile(path)

    def add(self, entry: dict[str, Any]) -> None:
        """Replace the entry of a micro-batch, and add what its failed attempts have counted."""
        entries = self.entries
        if entries and entries[-1]["batch_id"] == entry["batch_id"]:
            before = entries.pop()
            if "rows" not in before:
                entry = entry | {name: entry[name] + before[name] for name in _OF_FAILED}
        text = json.dumps({"batches": [*entries, entry][-_KEPT:]})
        new = self.path.with_suffix(f".{os.getpid()}.new")
        new.write_text(text)
        new.replace(self.path)


def record(metrics: SinkMetrics, *, failed: bool = False) -> None:
    """Keep the figures of a micro-batch for listeners. `failed`: Spark runs it again."""
    entry = metrics.to_json()
    if failed:
        entry = {name: entry[name] for name in ("batch_id", *_OF_FAILED)}
    try:
        file = FiguresFile.of(metrics.query_id, metrics.sink)
        if not file.entries:
            _delete_old(file.path.parent)
        file.add(entry)
    except Exception:
        logger.debug("the figures of sink %s cannot be kept", metrics.sink, exc_info=True)


def figures_of(query_id: str, batch_id: int) -> list[SinkMetrics]:
    """Return the figures of all sinks of a query for one micro-batch, sorted by name."""
    found = []
    with suppress(OSError, AttributeError, TypeError):  # a file of another release
        for path in sorted(_folder().glob(f"{query_id}.*.json")):
            sink = path.name.removeprefix(f"{query_id}.").removesuffix(".json")
            for entry in reversed(FiguresFile.of(query_id, sink).entries):
                if entry.get("batch_id") == batch_id and "rows" in entry:
                    with suppress(ValueError):
                        found.append(SinkMetrics.from_json(entry))
                    break
    return found


def _folder() -> Path:
    """Return this user's folder for figures. Raises OSError if another user owns it."""
    folder = Path(tempfile.gettempdir(), f"dedup-sinks-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or folder.is_symlink():
        raise PermissionError(f"{folder} belongs to another user")
    return folder


def _delete_old(folder: Path) -> None:
    for path in folder.iterdir():
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _FORGOTTEN_S:
                path.unlink()

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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from dedup.core.metrics import Metrics

if TYPE_CHECKING:
    from dedup.sinks.batch import Batch

logger = logging.getLogger("dedup")

#: Number of micro-batches that a file keeps, because listeners get events late.
_KEPT = 20
#: Files of queries that did nothing for so long are deleted.
_FORGOTTEN_S = 7 * 86_400


@dataclass(slots=True)
class WorkCounts:
    """What a task or the driver counts while it works for a sink."""

    rows: int | None = None
    bytes: int | None = None
    retries: int = 0
    fenced: int = 0
    us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkMetrics(Metrics):
    """Metrics of one sink in one micro-batch.

    `dedup_folder`, ``dedup run``, `delta_once` and `iceberg_once` have no tasks of their own that
    count. Their figures are None if only such a task would know them.

    Parameters
    ----------
    sink : str
        The sink's option `name`. ``files`` for `dedup_folder` and ``dedup run``.
    rows, bytes : int or None
        Rows of the micro-batch, and their size as Arrow bytes, before the sink encodes them. Rows
        that were published before count as well. For the four above these are the rows and bytes
        of the files that the micro-batch has written. Rows are None if these are text. Both are
        None if a Delta table has the micro-batch already, or got another commit in between, or if
        the snapshot of an Iceberg table has expired.
    retries : int or None
        Attempts beyond the first: of tasks, and of the driver's decision.
    fenced : int or None
        How often an attempt, or the driver, lost a slot to another owner. The next task of a slot
        may run in another worker, which fences the worker before. So this is normal.
    undelivered : int
        Records that mode ``none`` of the Kafka sink has lost since the micro-batch before.
    task_us : int or None
        Time of the tasks in the sink, summed, in microseconds, with the plan that computes their
        rows.
    driver_us : int
        Time of the driver in the sink, in microseconds. For the four above this is the time of the
        whole micro-batch.
    """

    query_id: str
    run_id: str
    batch_id: int
    sink: str
    rows: int | None
    bytes: int | None
    retries: int | None
    fenced: int | None
    undelivered: int
    task_us: int | None
    driver_us: int


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
    if (figures := _current.get()) is not None:
        figures.retries += 1


def note_fenced() -> None:
    """Count that the work in progress has lost a slot to another owner."""
    if (figures := _current.get()) is not None:
        figures.fenced += 1


def counted(rows: Iterable[pa.RecordBatch], figures: WorkCounts) -> Iterator[pa.RecordBatch]:
    count = nbytes = 0
    for batch in rows:
        count += batch.num_rows
        nbytes += batch.nbytes
        figures.rows, figures.bytes = count, nbytes
        yield batch


@contextmanager
def reported(
    batch: Batch, tasks: Sequence[WorkCounts] = (), undelivered: int = 0
) -> Iterator[WorkCounts]:
    """Measure the driver's work within the block, and keep the micro-batch's figures for listeners.

    If Spark's own tasks write for the sink, `tasks` is empty, and the block sets rows and bytes.
    """
    failed = True
    try:
        with measured() as driver:
            yield driver
        failed = False
    finally:
        known = bool(tasks)
        record(
            SinkMetrics(
                query_id=batch.query_id,
                run_id=batch.run_id,
                batch_id=batch.batch_id,
                sink=batch.sink,
                rows=sum(task.rows or 0 for task in tasks) if known else driver.rows,
                bytes=sum(task.bytes or 0 for task in tasks) if known else driver.bytes,
                retries=driver.retries + sum(task.retries for task in tasks) if known else None,
                fenced=driver.fenced + sum(task.fenced for task in tasks) if known else None,
                undelivered=undelivered,
                task_us=sum(task.us for task in tasks) if known else None,
                driver_us=driver.us,
            ),
            failed=failed,
        )


def total(values: Iterable[int | None]) -> int | None:
    """Return the sum of values, or None if one of them is unknown."""
    listed = list(values)
    return None if None in listed else sum(value or 0 for value in listed)


def record(metrics: SinkMetrics, *, failed: bool = False) -> None:
    """Keep the figures of a micro-batch for listeners. `failed`: Spark runs it again.

    Retries and lost slots of failed attempts count for the attempt that succeeds.
    """
    try:
        path = _folder() / f"{metrics.query_id}.{metrics.sink}.json"
        kept = _kept(path)
        if not kept:
            _delete_old(path.parent)
        elif kept[-1][0].batch_id == metrics.batch_id:
            before, was_failed = kept.pop()
            if was_failed:
                metrics = replace(
                    metrics,
                    retries=total([metrics.retries, before.retries]),
                    fenced=total([metrics.fenced, before.fenced]),
                )
        kept = [*kept, (metrics, failed)][-_KEPT:]
        new = path.with_suffix(f".{os.getpid()}.new")
        new.write_text(json.dumps([each.to_json() | {"failed": bad} for each, bad in kept]))
        new.replace(path)
    except Exception:
        logger.debug("the figures of sink %s cannot be kept", metrics.sink, exc_info=True)


def figures_of(query_id: str, batch_id: int) -> list[SinkMetrics]:
    """Return the figures of all sinks of a query for one micro-batch, sorted by name."""
    figures: list[SinkMetrics] = []
    with suppress(OSError):
        for path in sorted(_folder().glob(f"{query_id}.*.json")):
            figures += [e for e, failed in _kept(path) if e.batch_id == batch_id and not failed]
    return figures


def _kept(path: Path) -> list[tuple[SinkMetrics, bool]]:
    """Return the figures in a file, oldest first, and whether each micro-batch has failed."""
    try:
        return [(SinkMetrics.from_json(e), e["failed"]) for e in json.loads(path.read_bytes())]
    except (OSError, ValueError, KeyError, TypeError):  # no file yet, or one of another release
        return []


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

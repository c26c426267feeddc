"""The work of a sink into a table format. Tasks write data files, and the driver commits them.

Readers see only data files that a commit names. So tasks can write their data files to the table's
folder before the commit. The driver's single commit publishes them once
(`dedup.sinks.single_commit`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from dedup.errors import CatalogError, ConfigError, SinkError, faults
from dedup.sinks.batch import Batch
from dedup.sinks.content import Content, content_of
from dedup.sinks.lakehouse.columns import CHUNK_BYTES, TableColumns
from dedup.sinks.lakehouse.options import DELTA, LakeOptions
from dedup.sinks.ledger import Ledger
from dedup.sinks.marker import Marker
from dedup.sinks.protocol import Aborted, Indefinite, StagedBatch, StagedSlice
from dedup.sinks.single_commit import Publication, TablePort, commit_batch
from dedup.sinks.utf8 import check_utf8, only_utf8
from dedup.sinks.work import SinkWork, TaskResult


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file that a task has written and that no commit names yet.

    `path` has the form that the table format uses in commits. `entry` holds everything else that
    the commit says about the file.
    """

    path: str
    size_bytes: int
    entry: object


@dataclass(frozen=True, slots=True)
class UncommittedSlice(StagedSlice):
    """A slice whose rows are in data files that no commit names yet."""

    files: tuple[DataFile, ...] = ()


@dataclass(frozen=True)
class LakeTarget(ABC):
    """A table whose columns fit the stream. Spark sends this object to the tasks.

    If somebody drops and recreates the table, the new table has another `table_id`.
    """

    options: LakeOptions
    columns: TableColumns
    table_id: str

    @abstractmethod
    def write(self, batch: Batch, slot: int, rows: pa.Table) -> list[DataFile]:
        """Write rows to durable data files whose names no other attempt uses."""

    @abstractmethod
    def port(self, batch: Batch, files: Sequence[DataFile]) -> LakePort[Any]:
        """Return a handle with which the driver can commit `files` to the table."""


T = TypeVar("T", bound=LakeTarget)


class LakePort(TablePort, Generic[T]):
    """A handle with which one driver uses a table."""

    def __init__(self, target: T, batch: Batch, files: Sequence[DataFile]) -> None:
        self.target, self.batch, self.files = target, batch, files

    def newest(self) -> Marker | None:
        options = self.target.options
        if self._has_changed():
            raise ConfigError(
                f"Table {options.table} is another table, or has other columns, partitions, "
                "properties or features than when the query started. Start the query again, in "
                "foreachBatch with a new sink function. It finds a commit that has become visible."
            )
        marker, has_rows = self._marker()
        faults.point("lakehouse.marker.read")
        if marker is None or has_rows:
            return marker
        if options.accept_lost_markers:
            return None
        raise SinkError(
            f"Table {options.table} was restored to a version before micro-batch "
            f"{marker.batch_id}, which this sink has published. Rows of this micro-batch, and of "
            "earlier ones, may be gone. Nothing was written.",
            remedy="sink-markers",
        )

    @abstractmethod
    def _has_changed(self) -> bool:
        """Open the newest version of the table. Return whether the data files do not fit it."""

    @abstractmethod
    def _marker(self) -> tuple[Marker | None, bool]:
        """Return this sink's marker, and whether the table still has the marker's rows."""

    def commit(self, marker: Marker) -> None:
        self._check_files()
        faults.point("lakehouse.commit.before")
        try:
            self._commit(marker)
            faults.point("lakehouse.commit.after")
        except Aborted:
            raise
        except Exception as error:
            raise Indefinite(self.target.options.without_secrets(error)) from None

    @abstractmethod
    def _commit(self, marker: Marker) -> None:
        """Commit the next version. Raises Aborted if another commit has become that version."""

    def _check_files(self) -> None:
        table = self.target.options.table
        with self.target.options.opening():
            sizes = list(self._sizes())
        for file, size in zip(self.files, sizes, strict=True):
            if size != file.size_bytes:
                raise SinkError(
                    f"The data file {file.path} of table {table} is gone or changed before it was "
                    "committed. VACUUM, remove_orphan_files and other cleaners must keep files "
                    "that are younger than a micro-batch takes, and driver and executors need the "
                    "same AWS_ENDPOINT_URL and credentials, of one store. Then start the query "
                    "again."
                )

    @abstractmethod
    def _sizes(self) -> Iterable[int | None]:
        """Return the size of each data file as the library sees it, or None for a missing file."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete a data file."""

    def clean(self, outcome: Publication) -> None:
        """Delete this attempt's data files if the attempt found the micro-batch already published.

        Files of other attempts stay until `VACUUM` or `remove_orphan_files`, because a version of
        the table may name them.
        """
        if outcome is Publication.FOUND:
            for file in self.files:
                with suppress(Exception):
                    self.delete(file.path)


@dataclass(frozen=True)
class LakeWork(SinkWork):
    """The work of a sink into a table. The function `lakehouse.function.ready` makes it."""

    options: LakeOptions
    table: LakeTarget
    room = "lakehouse"

    def write(self, batch: Batch, slot: int, rows: Iterable[pa.RecordBatch]) -> TaskResult:
        faults.point("lakehouse.task.begin")
        shown, content = self.table.columns.shown, Content()
        files: list[DataFile] = []
        waiting: list[pa.Table] = []
        for each in rows:
            if not each.num_rows:
                continue
            with only_utf8(f"table {shown}"):
                check_utf8(each)
            content += content_of(each)
            waiting.append(self.table.columns.rows(each))
            if sum(table.nbytes for table in waiting) >= CHUNK_BYTES:
                files += self._write(batch, slot, waiting)
                waiting = []
        if waiting:
            files += self._write(batch, slot, waiting)
        faults.point("lakehouse.task.end")
        return TaskResult(batch, UncommittedSlice(slot, content, "", tuple(files)))

    def _write(self, batch: Batch, slot: int, waiting: list[pa.Table]) -> list[DataFile]:
        faults.point("lakehouse.stage.before")
        shown = self.table.columns.shown
        try:
            with only_utf8(f"table {shown}"):
                files = self.table.write(batch, slot, pa.concat_tables(waiting))
        except (CatalogError, OSError) as error:
            raise SinkError(
                f"A data file of table {shown} could not be written. Spark retries the task. "
                f"{self.options.without_secrets(getattr(error, 'text', error))}"
            ) from None
        faults.point("lakehouse.stage.after")
        return files

    def settle(self, ledger: Ledger, staged: StagedBatch) -> None:
        # As long as the table has no rows of this sink, users may drop and recreate the table.
        if any(piece.content.rows for piece in staged.slices) or ledger.published() is not None:
            option = "path" if self.options.format_name == DELTA else "table"
            ledger.settle({option: self.options.table}, table_id=self.table.table_id)

    def publish(self, staged: StagedBatch) -> Callable[[], None] | None:
        slices = [each for each in staged.slices if isinstance(each, UncommittedSlice)]
        port = self.table.port(staged.batch, [file for each in slices for file in each.files])
        outcome = commit_batch(staged, port)
        return None if outcome is Publication.NOTHING else lambda: port.clean(outcome)

"""A sink of a table format as Spark runs it: tasks write data files, the driver commits them.

No reader sees a data file that no commit names, so tasks write theirs beside the table's. The
guarantee rests on the driver's single commit (`dedup.sinks.single_commit`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from dedup.errors import CatalogError, SinkError, faults
from dedup.sinks.content import Content, content_of
from dedup.sinks.lakehouse.columns import CHUNK_BYTES, TableColumns
from dedup.sinks.lakehouse.options import LakeOptions
from dedup.sinks.ledger import Ledger
from dedup.sinks.protocol import Batch, PublishedSlice, StagedSlice
from dedup.sinks.single_commit import Publication, TablePort, commit_batch
from dedup.sinks.utf8 import check_utf8, only_utf8
from dedup.sinks.work import SinkWork, TaskResult


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file that a task has written, and no commit names yet.

    `path` is as the format's commit spells it, and `entry` holds what else the commit contains.
    """

    path: str
    size_bytes: int
    entry: object


@dataclass(frozen=True, slots=True)
class UncommittedSlice(StagedSlice):
    """A slice whose rows are in data files that no commit names yet."""

    files: tuple[DataFile, ...] = ()


def rolled_back(shown: str, batch_id: int) -> SinkError:
    """Return the error for a table that still has a marker, but not its rows."""
    return SinkError(
        f"Table {shown} was restored to a version before micro-batch {batch_id}, which this sink "
        "has published. Rows of this micro-batch, and of earlier ones, may be gone. Nothing was "
        "written.",
        remedy="sink-markers",
    )


class LakePort(TablePort, Protocol):
    """A table in the hands of one driver."""

    def clean(self, outcome: Publication) -> None:
        """Delete data files of this attempt that no commit can name. It never raises."""


class LakeTable(Protocol):
    """A table whose columns fit the stream. Spark sends it to the tasks."""

    @property
    def columns(self) -> TableColumns:
        """The columns of the table and the stream."""

    @property
    def setting(self) -> dict[str, str]:
        """Options that may not change while the sink has markers."""

    @property
    def table_id(self) -> str:
        """ID of this table; a table that was dropped and created again has another one."""

    def write(self, batch: Batch, slot: int, rows: pa.Table) -> list[DataFile]:
        """Write rows to durable data files, under names that no other attempt uses."""

    def port(self, batch: Batch, files: Sequence[DataFile]) -> LakePort:
        """Return the table in the hands of this driver, which may commit these files."""


@dataclass(frozen=True)
class LakeWork(SinkWork):
    """The work of a sink into tables; `dedup.sinks.lakehouse.function.ready` makes it."""

    options: LakeOptions
    table: LakeTable
    room = "lakehouse"

    def write(self, batch: Batch, slot: int, rows: Iterable[pa.RecordBatch]) -> TaskResult:
        """Write the rows of a task to data files."""
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

    def settle(self, ledger: Ledger, batch: Batch, slices: Sequence[StagedSlice]) -> None:
        """Fix the table and its ID."""
        # A table without rows of this sink may be dropped and created again.
        if any(piece.content.rows for piece in slices) or ledger.published() is not None:
            ledger.settle(self.table.setting, table_id=self.table.table_id)

    def publish(
        self,
        batch: Batch,
        slices: Sequence[PublishedSlice | StagedSlice],
        *,
        known_batch_id: int | None,
        accept_difference: bool,
    ) -> Callable[[], None] | None:
        """Commit the data files of all slices, together with the marker."""
        staged = [piece for piece in slices if isinstance(piece, UncommittedSlice)]
        port = self.table.port(batch, [file for piece in staged for file in piece.files])
        outcome = commit_batch(
            batch,
            port,
            sum((piece.content for piece in staged), Content()),
            known_batch_id=known_batch_id,
            accept_difference=accept_difference,
        )
        return None if outcome is Publication.NOTHING else lambda: port.clean(outcome)

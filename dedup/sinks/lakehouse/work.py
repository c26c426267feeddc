"""A sink of a table format as Spark runs it: tasks write data files, the driver commits them.

Nobody reads a data file that no commit names, so tasks may write them beside those of the table.
All that is promised rests on the one commit of the driver (`dedup.sinks.single_commit`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from dedup.errors import CatalogError, SinkError, faults
from dedup.sinks.content import Content, content_of
from dedup.sinks.lakehouse.columns import CHUNK_BYTES, TableColumns
from dedup.sinks.lakehouse.options import LakeOptions
from dedup.sinks.ledger import Ledger
from dedup.sinks.protocol import Batch, StagedSlice
from dedup.sinks.single_commit import Publication, TablePort, commit_batch
from dedup.sinks.utf8 import check_utf8, only_utf8
from dedup.sinks.work import TaskResult


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file that a task has written, and no commit names yet.

    Parameters
    ----------
    path : str
        Below the table's folder, or the whole place; as the format's commit names it.
    size_bytes : int
    entry : object
        What else the commit says of it; travels to the driver.
    """

    path: str
    size_bytes: int
    entry: object


@dataclass(frozen=True, slots=True)
class UncommittedSlice(StagedSlice):
    """A slice that waits in data files."""

    files: tuple[DataFile, ...] = ()


def rolled_back(shown: str, batch_id: int) -> SinkError:
    """Return the error for a table that has a marker still, and its rows no more."""
    return SinkError(
        f"Table {shown} was put back to a version before micro-batch {batch_id}, which this sink "
        "has published: its rows, and those of micro-batches before it, may be gone. Nothing was "
        "written.",
        remedy="sink-markers",
    )


class LakePort(TablePort, Protocol):
    """A table in the hands of one driver."""

    def clean(self, outcome: Publication) -> None:
        """Delete data files of this attempt that no commit can name; never raises."""


class LakeTable(Protocol):
    """A table that has been looked at; it travels to the tasks."""

    @property
    def columns(self) -> TableColumns:
        """Of the table and the stream."""

    @property
    def setting(self) -> dict[str, str]:
        """What may not change while the sink has markers."""

    @property
    def table_id(self) -> str:
        """Of this table, and of none that is made anew under its name."""

    def write(self, batch: Batch, slot: int, rows: pa.Table) -> list[DataFile]:
        """Write rows to data files that are durable, under names that no other attempt has."""

    def port(self, batch: Batch, files: Sequence[DataFile]) -> LakePort:
        """Return the table in the hands of this driver, which may commit these files."""


@dataclass(frozen=True, slots=True)
class LakeWork:
    """Implements `dedup.sinks.work.SinkWork`."""

    options: LakeOptions
    table: LakeTable

    @property
    def name(self) -> str:
        """Of the sink within its query."""
        return self.options.name

    def write(self, batch: Batch, slot: int, rows: Iterable[pa.RecordBatch]) -> TaskResult:
        """Write the rows of a task to data files; return what it tells the driver.

        Raises
        ------
        DataError
            Where the table does not take a record.
        """
        faults.point("lakehouse.task.begin")
        content, files = Content(), []
        waiting: list[pa.Table] = []
        for each in rows:
            if not each.num_rows:
                continue
            with only_utf8(f"table {self.table.columns.shown}"):
                check_utf8(each)
            content += content_of(each)
            waiting.append(self.table.columns.rows(each))
            if sum(table.nbytes for table in waiting) >= CHUNK_BYTES:
                files += self._write(batch, slot, waiting)
        files += self._write(batch, slot, waiting)
        faults.point("lakehouse.task.end")
        return TaskResult(batch, UncommittedSlice(slot, content, "", tuple(files)))

    def _write(self, batch: Batch, slot: int, waiting: list[pa.Table]) -> list[DataFile]:
        if not waiting:
            return []
        faults.point("lakehouse.stage.before")
        shown = self.table.columns.shown
        try:
            with only_utf8(f"table {shown}"):
                files = self.table.write(batch, slot, pa.concat_tables(waiting))
        except (CatalogError, OSError) as error:
            raise SinkError(
                f"A data file of table {shown} could not be written. Spark tries the task again. "
                f"{self.options.without_secrets(getattr(error, 'text', error))}"
            ) from None
        waiting.clear()
        faults.point("lakehouse.stage.after")
        return files

    def complete(self, answers: Sequence[TaskResult]) -> None:
        """Commit, on the driver, what the tasks of a micro-batch have written.

        Raises
        ------
        ConfigError
            When the table is not the one that the tasks have written for.
        SinkError
            When the table holds what contradicts this micro-batch.
        """
        if not answers:
            return
        faults.point("lakehouse.driver.before")
        batch = answers[0].batch
        staged = [answer.slice for answer in answers if isinstance(answer.slice, UncommittedSlice)]
        ledger = Ledger(self.options.ledger, batch.query_id)
        content = sum((piece.content for piece in staged), Content())
        published = ledger.published()
        if content.rows or published is not None:
            # A table into which nothing has come may be made anew.
            ledger.settle(self.table.setting, table_id=self.table.table_id)
        known = None if self.options.accept_lost_markers else published
        port = self.table.port(batch, [file for piece in staged for file in piece.files])
        outcome = commit_batch(
            batch,
            port,
            content,
            known_batch_id=known,
            accept_difference=self.options.accept_difference == batch.batch_id,
        )
        faults.point("lakehouse.driver.published")
        if outcome is not Publication.NOTHING:
            port.clean(outcome)
            ledger.note_published(batch.batch_id)
        faults.point("lakehouse.driver.after")

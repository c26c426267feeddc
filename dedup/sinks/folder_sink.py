"""A sink that publishes each micro-batch as a folder of files.

The sink writes a micro-batch below ``DIR/_staging/``, flushes the files to disk, and renames their
folder to ``DIR/batch=<id>/``. After a crash between the rename and Spark's own commit, Spark runs
the micro-batch again. The sink then keeps the existing folder, which has the same rows.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from dedup.errors import faults
from dedup.sinks.batch import new_batch
from dedup.sinks.batch_folders import STAGING, data_files, publish_folder
from dedup.sinks.figures import WorkCounts, reported
from dedup.sinks.foreach_batch import query_of, start_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Name of the column that holds each row's verdict in the folder of duplicates.
VERDICT = "dedup_verdict"


class RowsWriter(Protocol):
    """An object that writes the rows of a micro-batch to a staged folder."""

    def write(self, batch: DataFrame, folder: Path, split_by: str | None) -> None:
        """Write all rows to a new folder, in one Spark action.

        The files lack the column `split_by`. Its values become folders, such as
        ``verdict=duplicate``.
        """

    def write_no_rows(self, batch: DataFrame, folder: Path, without: str | None) -> None:
        """Write a file without rows, so that readers take the folder for an empty table.

        The file has the columns of `batch` except the column `without`.
        """


class SparkRows:
    """A `RowsWriter` that lets Spark write Parquet."""

    def write(self, batch: DataFrame, folder: Path, split_by: str | None) -> None:
        writer = batch.write
        if split_by is not None:
            writer = writer.partitionBy(split_by)
        writer.parquet(str(folder))

    def write_no_rows(self, batch: DataFrame, folder: Path, without: str | None) -> None:
        rows = batch if without is None else batch.drop(without)
        # Use a new DataFrame: Spark could compute the micro-batch again, even limited to no rows.
        empty = batch.sparkSession.createDataFrame([], rows.schema).coalesce(1)
        empty.write.parquet(str(folder))


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFiles:
    """Function for ``foreachBatch`` that publishes micro-batches as folders of `output`.

    If `duplicates` is given, the sink writes the rows whose verdict is not in `goes_on` to that
    folder. Each value of the column `verdict` has a partition folder there. The files in `output`
    then lack that column.

    If `rows_aside` returns rows for a micro-batch, the sink writes them to the folder `aside` as
    JSON lines. The sink calls `rows_aside` and `before_publishing` after it has written the
    micro-batch and before it publishes anything. An error from either call prevents the
    publication.

    If a call raises OSError, at most the side outputs of the micro-batch are visible. Spark then
    runs the micro-batch again, which completes it. Only one writer may run at a time: `open`
    removes what earlier writers left in the staging folders. Each call runs one Spark action.
    """

    output: Path
    writer: RowsWriter
    duplicates: Path | None = None
    verdict: str = VERDICT
    goes_on: frozenset[str] = frozenset({"unique"})
    aside: Path | None = None
    rows_aside: Callable[[int], DataFrame | None] | None = None
    before_publishing: Callable[[int], None] | None = None

    def open(self) -> None:
        """Create the folders, and remove the staged files of killed runs."""
        for root in self._roots():
            root.mkdir(parents=True, exist_ok=True)
        self.close()

    def close(self) -> None:
        for root in self._roots():
            shutil.rmtree(root / STAGING, ignore_errors=True)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        with reported(new_batch(query_of(batch), "files", start_of(batch), batch_id)) as figures:
            self._publish(batch, batch_id, figures)

    def _publish(self, batch: DataFrame, batch_id: int, figures: WorkCounts) -> None:
        staged = self.output / STAGING / f"{batch_id:012d}-{uuid.uuid4().hex}"
        # One pass over the micro-batch serves both outputs.
        verdict = None if self.duplicates is None else self.verdict
        self.writer.write(batch, staged / "rows", verdict)
        self._set_aside(staged, batch_id)
        passed, parts = staged / "rows", list[tuple[Path, Path]]()
        if self.duplicates is not None:
            passed, stopped = self._part(staged)
            parts.append((stopped, self.duplicates))
            if not data_files(stopped):
                self._write_no_rows(batch, stopped / f"{self.verdict}=duplicate")
        if not data_files(passed):
            self._write_no_rows(batch, passed)
        # The output comes last: if it is visible, its side outputs are too.
        parts.append((passed, self.output))
        figures.rows, figures.bytes = _size([*chain(*(data_files(part) for part, _ in parts))])
        for part, root in parts:
            faults.point("sink.staged")
            publish_folder(part, root, batch_id)
            faults.point("sink.published" if root == self.output else "sink.side.published")
        shutil.rmtree(staged, ignore_errors=True)

    def _roots(self) -> Iterator[Path]:
        return filter(None, (self.output, self.duplicates, self.aside))

    def _set_aside(self, staged: Path, batch_id: int) -> None:
        if self.before_publishing is not None:
            self.before_publishing(batch_id)
        if self.aside is None or self.rows_aside is None:
            return
        rows = self.rows_aside(batch_id)
        if rows is None:
            return
        folder = staged / "aside"
        rows.write.json(str(folder))
        for path in data_files(folder):
            if not path.stat().st_size:  # of a task without rows
                path.unlink()
        if data_files(folder):
            faults.point("sink.staged")
            publish_folder(folder, self.aside, batch_id)
            faults.point("sink.side.published")

    def _part(self, staged: Path) -> tuple[Path, Path]:
        """Divide a written micro-batch's verdict folders between `output` and `duplicates`."""
        passed, stopped = staged / "output", staged / "duplicates"
        passed.mkdir()
        stopped.mkdir()
        for folder in sorted((staged / "rows").glob(f"{self.verdict}=*")):
            verdict = folder.name.partition("=")[2]
            if verdict not in self.goes_on:
                folder.rename(stopped / folder.name)
                continue
            for path in data_files(folder):
                # Spark gives the files of one task the same name in every partition folder.
                path.rename(passed / f"{verdict}-{path.name}")
        return passed, stopped

    def _write_no_rows(self, batch: DataFrame, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        without = None if self.duplicates is None else self.verdict
        self.writer.write_no_rows(batch, folder, without)


def _size(files: Sequence[Path]) -> tuple[int | None, int]:
    """Return the rows and bytes of files. The rows are None if a file is not Parquet."""
    try:
        rows: int | None = sum(pq.read_metadata(path).num_rows for path in files)
    except (OSError, pa.ArrowException):
        rows = None
    return rows, sum(path.stat().st_size for path in files)

"""What the tasks of a micro-batch wrote, brought together on the driver."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dedup.errors import DedupError, faults
from dedup.sinks.files.output_files import parquet_writer
from dedup.sinks.files.slice_files import WrittenFile
from dedup.sinks.files.write import FileWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFiles:
    """A `dedup.sinks.folder_sink.RowsWriter` for a micro-batch whose last pass writes its rows.

    Parameters
    ----------
    pass_ : FileWriter
        That pass.
    """

    pass_: FileWriter

    def write(self, batch: DataFrame, folder: Path, split_by: str | None) -> None:
        """Run the micro-batch, and move what its tasks wrote to the folder.

        Raises
        ------
        DedupError
            If a file is not there, or not as its task left it.
        """
        written = batch.collect()
        faults.point("files.collected")
        found = [WrittenFile(row["path"], row["folder"], row["bytes"], 0) for row in written]
        gather(found, folder)
        for parent in {Path(file.path).parent for file in found}:
            # What is left in there is of attempts that do not count.
            shutil.rmtree(parent, ignore_errors=True)

    def write_no_rows(self, batch: DataFrame, folder: Path, without: str | None) -> None:
        """Leave a file with the columns alone, which lack the one that names folders already."""
        shape = self.pass_.shape
        folder.mkdir(parents=True)
        with parquet_writer(
            folder / "part-none.parquet", shape.columns, shape.compression
        ) as writer:
            writer.write_table(shape.columns.empty_table())


def gather(files: Iterable[WrittenFile], folder: Path) -> None:
    """Move what tasks wrote to a folder that is not there yet, as it is to be published.

    Raises
    ------
    DedupError
        If a file is not there, or not as its task left it.
    """
    folder.mkdir(parents=True)
    for file in files:
        path, below = Path(file.path), folder / file.folder
        below.mkdir(parents=True, exist_ok=True)
        try:
            size = path.stat().st_size
            path.rename(below / path.name)
        except OSError as error:
            raise _missing(path, str(error.strerror)) from error
        if size != file.nbytes:
            raise _missing(path, f"it has {size} bytes in place of {file.nbytes}")


def _missing(path: Path, why: str) -> DedupError:
    return DedupError(
        f"{path}, which a task of this micro-batch has written, cannot be published: {why}. Let "
        "nothing but this run write below that folder, which must be one and the same on all "
        "machines, and run again. Nothing is lost.",
        remedy="local-disk",
    )

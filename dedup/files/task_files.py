"""What the tasks of a micro-batch wrote, brought together on the driver."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dedup import faults
from dedup.errors import DedupError
from dedup.files.write import FileWriter, parquet_writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFiles:
    """A `dedup.sinks.staged.RowsWriter` for a micro-batch whose last pass writes its rows.

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
        folder.mkdir(parents=True)
        written = batch.collect()
        faults.point("files.collected")
        for row in written:
            path, below = Path(row["path"]), folder / row["folder"]
            below.mkdir(exist_ok=True)
            try:
                size = path.stat().st_size
                path.rename(below / path.name)
            except OSError as error:
                raise _missing(path, str(error.strerror)) from error
            if size != row["bytes"]:
                raise _missing(path, f"it has {size} bytes in place of {row['bytes']}")
        for parent in {Path(row["path"]).parent for row in written}:
            # What is left in there is of attempts that do not count.
            shutil.rmtree(parent, ignore_errors=True)

    def write_no_rows(self, batch: DataFrame, folder: Path, without: str | None) -> None:
        """Leave a file with the columns alone, which lack the one that names folders already."""
        columns = self.pass_.columns
        folder.mkdir(parents=True)
        with parquet_writer(
            folder / "part-none.parquet", columns, self.pass_.compression
        ) as writer:
            writer.write_table(columns.empty_table())


def _missing(path: Path, why: str) -> DedupError:
    return DedupError(
        f"{path}, which a task of this micro-batch has written, cannot be published: {why}. Let "
        "nothing but this run write below that folder, which must be one and the same on all "
        "machines, and run again. Nothing is lost.",
        remedy="local-disk",
    )

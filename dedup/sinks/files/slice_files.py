"""What one task writes of a micro-batch: files of its own, by the folders that its rows belong to.

Files are below a folder that readers pass over, and have names that no other attempt has. A task
tells their names when all of them are durable; the driver publishes those of the attempts that
Spark counts.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

from dedup.errors import faults
from dedup.sinks.files.csv_lines import csv_head, csv_lines
from dedup.sinks.files.json_lines import json_lines
from dedup.sinks.files.output_files import GROUP_BYTES, OutputFile, ParquetOutput, TextOutput
from dedup.sources.files.folder_columns import parted

#: Files that a task holds open; to open one more, the one that was opened first is finished.
_OPEN_FILES = 64
_ENDINGS = {"none": "", "gzip": ".gz"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileShape:
    """How the files of an output are written.

    Parameters
    ----------
    columns : pyarrow.Schema
        Those in the files, with the metadata that Spark writes.
    compression : str
        As pyarrow calls it.
    split_by : tuple of str
        Columns whose values name folders, such as ``verdict=duplicate``, and which the files lack.
    file_format : str
        ``parquet``, ``json`` or ``csv``.
    header : bool
        Whether a CSV file begins with the names of its columns.
    target_bytes : int or None
        A file is finished at the end of the part that makes it so large.
    """

    columns: pa.Schema
    compression: str
    split_by: tuple[str, ...] = ()
    file_format: str = "parquet"
    header: bool = False
    target_bytes: int | None = None

    @property
    def ending(self) -> str:
        """How names of files end."""
        if self.file_format == "parquet":
            return ".parquet"
        return f".{self.file_format}{_ENDINGS[self.compression]}"

    def new_file(self, path: Path) -> OutputFile:
        """Return a file that is yet to be written."""
        if self.file_format == "parquet":
            # A group takes fewer bytes in the file than in memory.
            group = None if self.target_bytes is None else min(GROUP_BYTES, self.target_bytes)
            return ParquetOutput(path, self.columns, self.compression, group)
        if self.file_format == "json":
            return TextOutput(path, self.columns, self.compression, json_lines)
        head = csv_head(self.columns) if self.header else b""
        return TextOutput(path, self.columns, self.compression, csv_lines, head)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is whole and durable.

    Parameters
    ----------
    path : str
        Where it is.
    folder : str
        Below which folder of the micro-batch it belongs; empty for none.
    nbytes, rows : int
    """

    path: str
    folder: str
    nbytes: int
    rows: int


@dataclass(slots=True)
class SliceFiles:
    """The files of one attempt of a task; in a ``with``, from which an error removes them all.

    Parameters
    ----------
    folder : Path
        Is made with the first file.
    shape : FileShape
    number : int
        Of the task.
    """

    folder: Path
    shape: FileShape
    number: int
    _open: dict[str, OutputFile] = field(default_factory=dict)
    _done: list[tuple[str, OutputFile]] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            return
        for file in self._open.values():
            file.drop_unfinished()
        for _, file in self._done:
            file.drop()

    def add(self, rows: pa.RecordBatch) -> None:
        """Write rows.

        Raises
        ------
        DedupError
            If the disk is full, or the folder cannot be written.
        """
        for below, part in parted(rows, self.shape.split_by):
            file = self._file(below)
            file.add(part)
            if self.shape.target_bytes is not None and file.nbytes >= self.shape.target_bytes:
                self._finish(below)

    def finish(self) -> list[WrittenFile]:
        """Return all files, which are durable now. Errors as `add`."""
        for below in list(self._open):
            self._finish(below)
        faults.point("files.written")
        return [
            WrittenFile(str(file.path), below, file.nbytes, file.rows) for below, file in self._done
        ]

    def _file(self, below: str) -> OutputFile:
        if below not in self._open:
            if len(self._open) >= _OPEN_FILES:
                self._finish(next(iter(self._open)))
            name = f"part-{self.number:05d}-{uuid.uuid4().hex}{self.shape.ending}"
            self._open[below] = self.shape.new_file(self.folder / name)
        return self._open[below]

    def _finish(self, below: str) -> None:
        self._open[below].finish()
        self._done.append((below, self._open.pop(below)))


def staging_folder(batch_id: int, run_id: str) -> str:
    """Name of the folder of what the tasks of a micro-batch write."""
    return f"files-{batch_id:012d}-{run_id}"


def batch_of_staged(name: str) -> int | None:
    """Return the micro-batch that a folder of this name was staged for; None for any other."""
    number = name.removeprefix("files-").partition("-")[0]
    return int(number) if re.fullmatch("[0-9]{12}", number) else None

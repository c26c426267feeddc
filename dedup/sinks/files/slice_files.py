"""The files that one task writes for a micro-batch. Each partition folder gets separate files.

The task writes below a folder that readers skip. Each attempt of a task gives its files new names,
and returns the names once all files are durable. The driver publishes the files of the attempts
whose results Spark accepts.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

import pyarrow as pa

from dedup.errors import DedupError, faults
from dedup.sinks.files.output_files import GROUP_BYTES, OutputFile, ParquetOutput, TextOutput
from dedup.sinks.files.text_lines import Dialect, csv_head, csv_lines, json_lines
from dedup.sources.files.folder_columns import parted

#: How many files a task keeps open. To open one more, the task finishes the oldest file.
_OPEN_FILES = 64
_ENDINGS = {"none": "", "gzip": ".gz"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileShape:
    """The format and columns of an output's files.

    `columns` are the columns in the files, with the metadata that Spark writes. The columns in
    `split_by` are not in the files, and their values name folders. The `dialect` is for CSV and
    JSON. A task begins a new file once a file has `target_bytes`.
    """

    columns: pa.Schema
    compression: str
    split_by: tuple[str, ...] = ()
    file_format: str = "parquet"
    dialect: Dialect = field(default_factory=Dialect)
    target_bytes: int | None = None

    @property
    def ending(self) -> str:
        if self.file_format == "parquet":
            return ".parquet"
        return f".{self.file_format}{_ENDINGS[self.compression]}"

    def new_file(self, path: Path) -> OutputFile:
        if self.file_format == "parquet":
            # A row group is smaller in the file than in memory.
            group = None if self.target_bytes is None else min(GROUP_BYTES, self.target_bytes)
            return ParquetOutput(path, self.columns, self.compression, group)
        is_csv, dialect = self.file_format == "csv", self.dialect
        lines = partial(csv_lines if is_csv else json_lines, dialect=dialect)
        head = csv_head(self.columns, dialect) if is_csv else b""
        return TextOutput(path, self.columns, self.compression, lines, head)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that a task has finished and made durable.

    `path` is where the file is. It is below the output once the driver knows the file from a plan,
    and always in a store. `name` is the file's future name below the folder of the micro-batch, and
    includes partition folders.
    """

    path: str
    name: str
    nbytes: int


@dataclass(slots=True)
class SliceFiles:
    """The files of one attempt of a task. If the ``with`` block fails, this removes the files."""

    folder: Path
    shape: FileShape
    number: int
    _open: dict[str, OutputFile] = field(default_factory=dict)
    _done: list[tuple[str, OutputFile]] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for file in (*self._open.values(), *(file for _, file in self._done)):
                file.drop()

    def add(self, rows: pa.RecordBatch) -> None:
        for below, part in parted(rows, self.shape.split_by):
            file = self._file(below)
            file.add(part)
            if self.shape.target_bytes is not None and file.nbytes >= self.shape.target_bytes:
                self._finish(below)

    def finish(self) -> list[WrittenFile]:
        for below in list(self._open):
            self._finish(below)
        faults.point("files.written")
        return [
            WrittenFile(str(file.path), os.path.join(below, file.path.name), file.nbytes)
            for below, file in self._done
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
    return f"files-{batch_id:012d}-{run_id}"


def batch_of_staged(name: str) -> int | None:
    """Return the micro-batch that a staged folder's name contains, or None if there is none."""
    number = name.removeprefix("files-").partition("-")[0]
    return int(number) if re.fullmatch("[0-9]{12}", number) else None


def gather(files: Iterable[WrittenFile], folder: Path) -> None:
    """Move the files of all tasks to a new folder, which can then be published."""
    folder.mkdir(parents=True)
    for file in files:
        path, target = Path(file.path), folder / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            size = path.stat().st_size
            path.rename(target)
        except OSError as error:
            raise _changed(path, str(error.strerror)) from error
        if size != file.nbytes:
            raise _changed(path, f"it has {size} bytes instead of {file.nbytes}")


def _changed(path: Path, why: str) -> DedupError:
    return DedupError(
        f"{path}, which a task of this micro-batch has written, cannot be published: {why}. That "
        "folder must be the same on all machines, and only this run may write to it. Start the run "
        "again; nothing is lost.",
        remedy="local-disk",
    )

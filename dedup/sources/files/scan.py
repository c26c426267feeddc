"""Reads files and packs their rows into blobs in one pass, so that no row enters the JVM.

A task gets a list of **splits** from Spark. A split names a file as Spark's source listed it
(``path``, ``size``, ``mtime_ms``), and the part of the file to read: part ``number``, from 0, of
``count`` parts. Each row group belongs to one part. So several tasks can share a large file, and
the driver need not read the file's footer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from dedup.errors import DataError, faults
from dedup.sources.files.event_times import EventTime
from dedup.sources.files.exact_values import WRITE_AGAIN, NotExact, unreadable
from dedup.sources.files.folder_columns import folder_values
from dedup.sources.files.parquet_input import ParquetInput, positions
from dedup.sources.files.text_input import Located, TextFormat, TextInput
from dedup.sources.files.text_records import BadRecord, Unreadable, type_name
from dedup.sources.files.text_values import Spelling, Unfit, from_text
from dedup.spark.executor.pack import pack
from dedup.spark.plan import Plan

#: Number of characters of a bad record that an error shows.
_SHOWN_CHARS = 200
_BAD = pa.schema([("file", pa.string()), ("line", pa.int64()), ("reason", pa.string()),
                  ("record", pa.string())])  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSource:
    """CSV or JSON below the folder `root`. With `skips_bad`, bad records are only counted."""

    root: Path
    format: TextFormat
    skips_bad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The first pass of a query over files. It replaces `pack`, and gets splits instead of rows."""

    #: The user's columns, from files and folders.
    columns: pa.Schema
    #: The plan's names for `columns`, in the same order.
    names: tuple[str, ...]
    #: Names of the partition columns.
    folders: frozenset[str]
    #: The plan's name for the column with the micro-batch's time, or None without that column.
    now_column: str | None
    #: The plan's name for the column of event times, and how they are made. Neither is given if
    #: the times are one of `columns`.
    time_column: str | None = None
    time: EventTime | None = None
    #: Name of an added column with the file's modification time in ms, a blank, and its URI.
    file_column: str | None = None
    #: None for Parquet.
    text: TextSource | None = None

    def __call__(self, plan: Plan, splits: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the packed rows of one task. Raises what `pack` and `rows` raise."""
        bad = Counter[str]()
        yield from pack(plan, self.rows(splits, bad), lambda: bad.total())

    def rows(
        self, splits: Iterator[pa.RecordBatch], bad: Counter[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the splits, with their event times and the time of the micro-batch.

        Counts the bad records of each file in `bad`. Raises DataError for a file that is missing,
        damaged, or changed since Spark listed it, and for a bad record that may not be skipped.
        """
        every = self.time_column, self.now_column, self.file_column
        added = [name for name in every if name is not None]
        for split, now in _each(splits):
            for rows in self._rows(split, Counter() if bad is None else bad):
                if self.now_column is not None:
                    rows.append(pa.repeat(now, len(rows[0])))
                if self.file_column is not None:
                    name = f"{split['mtime_ms']} {_path(split).as_uri()}"
                    rows.append(pa.repeat(pa.scalar(name), len(rows[0])))
                yield pa.RecordBatch.from_arrays(rows, names=[*self.names, *added])

    def bad_records(self, splits: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the bad records of the splits: file, line, reason and text."""
        for split, _ in _each(splits):
            path = _path(split)
            for located in self._located(path, split):
                rows = [
                    {
                        "file": str(path),
                        "line": line,
                        "reason": record.reason,
                        "record": record.text.decode(errors="replace"),
                    }
                    for line, record in located.bad
                ]
                yield pa.RecordBatch.from_pylist(rows, _BAD)

    def _rows(self, split: dict[str, Any], bad: Counter[str]) -> Iterator[list[pa.Array]]:
        faults.point("scan.begin")
        path = _path(split)
        if self.text is None:
            yield from self._parquet(path, split)
            return
        folders = self._folder_values(path, self.text)
        for located in self._located(path, split):
            for line, record in located.bad:
                if not self.text.skips_bad:
                    raise DataError(_fault(path, line, record) + ".", remedy="bad-records")
                bad[str(path)] += 1
            if located.good.num_rows:
                ordered = self._ordered(located.good, folders)
                yield [*ordered, *(located.times or self._times(path, ordered))]

    def _folder_values(self, path: Path, text: TextSource) -> dict[str, pa.Scalar]:
        texts = {name.lower(): value for name, value in folder_values(path, text.root)}
        # Patterns are for the text in files.
        values, spelling = {}, Spelling(time_zone=text.format.spelling.time_zone)
        for column in self.columns:
            if column.name not in self.folders:
                continue
            value = texts.get(column.name.lower())
            try:
                one = None if value is None else from_text(column.type, spelling)(value)
            except Unfit:
                raise DataError(
                    f"{path} cannot be read: its folder {column.name}={value} does not fit "
                    f"{type_name(column.type)}. Rename the folder, and run again. Or give a new "
                    "output, and a schema with another type for the column.",
                    remedy="input-names",
                ) from None
            values[column.name] = pa.scalar(one, column.type)
        return values

    def _located(self, path: Path, split: dict[str, Any]) -> Iterator[Located]:
        assert self.text is not None
        is_in_file = self.time is not None and self.time.column not in self.folders
        time = self.time if is_in_file else None
        with _as_listed(path, split), TextInput(path, self.text.format, time) as file:
            yield from file.rows(split["number"], split["count"])

    def _parquet(self, path: Path, split: dict[str, Any]) -> Iterator[list[pa.Array]]:
        with _as_listed(path, split, "Parquet"), ParquetInput(str(path)) as file:
            in_file = pa.schema([c for c in self.columns if c.name not in self.folders])
            problem = file.misfit(in_file)
            if problem is not None:
                raise DataError(
                    f"{path} was added during the run, and only Spark itself can read it: "
                    f"{problem}. None of its rows was read. Run again."
                )
            present = pa.schema([c for c in in_file if positions(file.schema, c.name)])
            by_folder = [c for c in self.columns if c.name in self.folders]
            folders = {c.name: pa.scalar(split["folders"][c.name], c.type) for c in by_folder}
            parts = file.parts
            for part, rows in enumerate(parts):
                if part * split["count"] // len(parts) != split["number"]:
                    continue
                for batch in file.batches(part, present):
                    rows -= batch.num_rows
                    ordered = self._ordered(batch, folders)
                    yield [*ordered, *self._times(path, ordered)]
                if rows:
                    raise pa.ArrowInvalid(f"its rows and its footer differ by {abs(rows)}")

    def _ordered(self, batch: pa.RecordBatch, folders: dict[str, pa.Scalar]) -> list[pa.Array]:
        return [
            pa.repeat(folders[column.name], batch.num_rows)
            if column.name in folders
            else batch.column(column.name)
            if column.name in batch.schema.names
            else pa.nulls(batch.num_rows, column.type)
            for column in self.columns
        ]

    def _times(self, path: Path, columns: list[pa.Array]) -> list[pa.Array]:
        if self.time is None:
            return []
        (place,) = positions(self.columns, self.time.column)
        times, unfit = self.time.of(columns[place])
        if unfit:
            value = columns[place][unfit[0]]
            raise DataError(
                f"{path} cannot be read: {self.time.column} is not a time: {value}.",
                remedy="bad-records",
            )
        return [times]


def good_rows(
    path: Path, text_format: TextFormat, number: int, count: int, *, skips_bad: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of part `number` of `count` parts of a file.

    Raises DataError for a file that cannot be read, and for a bad record that may not be skipped.
    """
    status = path.stat()
    now = {"size": status.st_size, "mtime_ms": status.st_mtime_ns // 1_000_000}
    with _as_listed(path, now), TextInput(path, text_format) as file:
        for located in file.rows(number, count):
            if located.bad and not skips_bad:
                raise DataError(_fault(path, *located.bad[0]) + ".", remedy="bad-records")
            yield located.good


def _fault(path: Path, line: int, record: BadRecord) -> str:
    shown = record.text.decode(errors="replace")[:_SHOWN_CHARS]
    return f"{path} cannot be read: {record.reason} It is line {line:,}: {shown}"


def _each(splits: Iterator[pa.RecordBatch]) -> Iterator[tuple[dict[str, Any], pa.Scalar]]:
    for batch in splits:
        nows = batch.column("now")
        yield from zip(batch.drop_columns(["now"]).to_pylist(), nows, strict=True)


def _path(split: dict[str, Any]) -> Path:
    # The path is not URL-encoded.
    return Path("/" + split["path"].removeprefix("file:").lstrip("/"))


@contextmanager
def _as_listed(path: Path, split: dict[str, Any], file_format: str | None = None) -> Iterator[None]:
    """Check, before and after the body runs, that a file is still as Spark listed it."""
    _check(path, split)
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        _check(path, split)
        why = str(error).rstrip(".")
        raise unreadable(path, why, file_format=file_format) from error
    except Unreadable as error:
        _check(path, split)
        line, why = error.args
        raise unreadable(path, f"{why}, in the record at line {line:,}") from None
    except NotExact as error:
        raise DataError(f"{path}: {error}. {WRITE_AGAIN}", remedy="bad-records") from None
    _check(path, split)


def _check(path: Path, split: dict[str, Any]) -> None:
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}. It existed when its micro-batch began. "
            "Restore it, and run again.",
            remedy="unfinished-files",
        ) from None
    if (status.st_size, status.st_mtime_ns // 1_000_000) != (split["size"], split["mtime_ms"]):
        raise DataError(
            f"{path} was overwritten while its micro-batch was read. No row of the micro-batch was "
            "used. Wait until its writer has finished, and run again.",
            remedy="unfinished-files",
        )

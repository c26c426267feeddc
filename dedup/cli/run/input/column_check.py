"""Finds columns of new files that the output does not have, for `--new-columns`.

Without this check, Spark would silently leave out columns that it was not told to read. The *known*
columns are the columns that Spark reads.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import TypeAlias

from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812

from dedup.cli.run.input.as_read import some_of
from dedup.cli.run.input.columns import Change, changes, fault, joined, schema_bytes, type_text
from dedup.cli.run.input.files import Stamp
from dedup.cli.run.input.inference import Inference
from dedup.cli.run.input.source import read_settings
from dedup.cli.run.job import Job
from dedup.cli.run.options import COLUMNAR
from dedup.errors import ConfigError, DataError
from dedup.sources.files.exact_values import unreadable
from dedup.sources.files.folder_columns import folder_names
from dedup.sources.files.json_types import Shape
from dedup.sources.files.parquet_input import spark_columns
from dedup.storage.uri import literal

#: Kinds of changes that matter, by format. Types do not matter in JSON, whose values are judged
#: record by record, and in CSV, whose types are given.
_KINDS = {
    "csv": ("added", "removed"),
    "json": ("added", "respelled"),
    "parquet": ("added", "other"),
    "orc": ("added", "other"),
}
#: Largest number of columns or files that a message names.
_SHOWN = 3

#: A file, its columns, and what its text is.
_Found: TypeAlias = tuple[Path, T.StructType, Shape]
#: Function that prints a message to the user.
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A file whose columns differ from the known columns."""

    path: Path
    #: All columns of the file, or None if only the names of its folders differ.
    columns: T.StructType | None
    changes: tuple[Change, ...]
    #: What its text is.
    shape: Shape = None

    def of_kind(self, kind: str) -> list[Change]:
        return [change for change in self.changes if change.kind == kind]


class ColumnCheck:
    """Compares the columns of every file once with the known columns.

    `published` are files whose rows are published, but whose micro-batch is not committed. Users
    must not change these files, so errors in them are ignored.
    """

    def __init__(
        self,
        spark: SparkSession,
        job: Job,
        columns: T.StructType,
        inference: Inference,
        *,
        published: Container[str] = (),
    ) -> None:
        self._published = published
        self._spark = spark
        self._job = job
        self._columns = columns
        self._format = job.files.file_format
        self._inference = inference
        self._seen: dict[str, Stamp] = {}

    def settle(self, columns: T.StructType, stamps: Mapping[str, Stamp]) -> None:
        """Replace the known columns. Files in `stamps` are not compared with these columns."""
        self._columns = columns
        self._seen.update(stamps)

    def agree(self, columns: T.StructType, stamps: Mapping[str, Stamp], note: Note) -> T.StructType:
        """Compare the files of this run, and return the columns to read and write."""
        mismatches = self._mismatches(stamps)
        if mismatches:
            columns = self._decide(columns, mismatches, note)
        if self._format == "csv" and columns != self._columns:
            # Each file of the run needs the columns that some of them add.
            self._columns = columns
            self._refuse([*self._file_mismatches(list(map(Path, stamps)))])
        self.settle(columns, stamps)
        return columns

    def check_arrived(self, paths: Sequence[str]) -> None:
        """Raise ConfigError if a file that is new or changed since `agree` has other columns."""
        stamps = {}
        for path in paths:
            with suppress(FileNotFoundError):
                stamps[path] = Stamp.of(path)
        self._refuse(self._mismatches(stamps), may_add=False)

    def _mismatches(self, stamps: Mapping[str, Stamp]) -> list[Mismatch]:
        fresh = [Path(path) for path, stamp in stamps.items() if self._seen.get(path) != stamp]
        if not fresh:
            return []
        mismatches = [*self._folder_mismatches(fresh), *self._file_mismatches(fresh)]
        self._seen.update(stamps)
        return mismatches

    def _folder_mismatches(self, paths: Sequence[Path]) -> Iterator[Mismatch]:
        names = {name.lower() for name in self._columns.names}
        first: dict[str, Path] = {}
        for path in paths:
            for name in folder_names(path, self._job.files.root):
                if name.lower() not in names:
                    first.setdefault(name, path)
        for name, path in first.items():
            yield Mismatch(path, None, (Change(name, "added", None, T.StringType()),))

    def _file_mismatches(self, paths: Sequence[Path]) -> Iterator[Mismatch]:
        known, folders = self._columns.fields, self._job.files.partitions
        own = T.StructType([field for field in known if field.name.lower() not in folders])
        inferred = self._columnar(paths) if self._format in COLUMNAR else self._text(own, paths)
        for path, columns, shape in inferred:
            # Only the reader of JSON distinguishes upper and lower case in names.
            every = changes(own, columns, exact=self._format == "json")
            differ = tuple(change for change in every if change.kind in _KINDS[self._format])
            if differ:
                yield Mismatch(path, columns, differ, shape)

    def _text(self, own: T.StructType, paths: Sequence[Path]) -> Iterator[_Found]:
        names: dict[Path, list[str] | None] = dict.fromkeys(paths)
        if self._format == "csv":
            names = {path: header for path in paths if (header := self._header(own, path))}
        shapes = self._inference.shapes([*names])
        for (path, header), shape in zip(names.items(), shapes, strict=True):
            yield path, self._inference.columns([shape], header), shape

    def _columnar(self, paths: Sequence[Path]) -> Iterator[_Found]:
        inferred: dict[bytes, T.StructType] = {}
        reader = self._spark.read.format(self._format).options(**read_settings(self._job))
        with ThreadPoolExecutor(self._job.options.cores) as pool:
            signatures = list(pool.map(schema_bytes, paths, repeat(self._format)))
        for path, signature in zip(paths, signatures, strict=True):
            if signature is None:
                continue
            # Infer the columns once for all files with the same signature.
            if signature not in inferred:
                try:
                    inferred[signature] = spark_columns(reader, [literal(str(path))], [path])
                except Exception:
                    raise unreadable(path, fault(path, self._format)) from None
            yield path, inferred[signature], None

    def _header(self, own: T.StructType, path: Path) -> list[str] | None:
        """Return a CSV file's header, or None if it has the known columns or does not matter."""
        if not self._inference.reads_headers:
            return None
        try:
            names = self._inference.header(path)
        except DataError:
            if str(path) in self._published:
                return None
            raise
        is_known = {name.lower() for name in names} == {name.lower() for name in own.names}
        return None if is_known else names

    def _decide(
        self, columns: T.StructType, mismatches: Sequence[Mismatch], note: Note
    ) -> T.StructType:
        policy = self._job.options.new_columns
        self._refuse(mismatches)
        for each in mismatches:
            if policy == "add" and each.columns is None:
                raise ConfigError(
                    f"{each.path}: {_named(each.changes)} is named by a folder, and cannot be "
                    "added to an existing output. Write it into the files, or give --new-columns "
                    "ignore or a new --output.",
                    remedy="new-columns",
                )
        in_files = [each for each in mismatches if each.columns is not None]
        if in_files and policy == "add":
            columns = self._with_all(columns, in_files)
        done = "added to the output" if policy == "add" else "left out"
        note(f"Columns that are new in the input are {done}: {_listed(mismatches)}.")
        return columns

    def _with_all(self, columns: T.StructType, mismatches: Sequence[Mismatch]) -> T.StructType:
        joint: T.DataType = columns
        new = [each.columns for each in mismatches if each.columns is not None]
        if self._format not in COLUMNAR:
            # Values of the same new column may need another type in each file.
            names = [name for columns in new for name in columns.names]
            shapes = [each.shape for each in mismatches]
            new = [self._inference.columns(shapes, names if self._format == "csv" else None)]
        for columns in new:
            joint = joined(joint, columns)
        assert isinstance(joint, T.StructType)
        if self._format in COLUMNAR:
            # Two files may have the same new column with different types.
            for each in mismatches:
                every = changes(joint, each.columns or joint)
                other = tuple(change for change in every if change.kind == "other")
                self._refuse([replace(each, changes=other)])
        return joint

    def _refuse(self, mismatches: Sequence[Mismatch], *, may_add: bool = True) -> None:
        record, options = self._job.record, self._job.options
        for each in mismatches:
            respelled = each.of_kind("respelled")
            if respelled and options.new_columns != "ignore":
                raise ConfigError(
                    f"{each.path} has {_named(respelled)}, whose case differs from the output's "
                    "column. Spark matches the case of names in JSON, so its values would be lost. "
                    "Write it as the output does, or give --new-columns ignore to leave it out. "
                    "Nothing of it was taken.",
                    remedy="new-columns",
                )
            for change in each.of_kind("other"):
                raise ConfigError(
                    f"{each.path}: the column {change.column!r} is {type_text(change.now)} there, "
                    f"and {type_text(change.was)} in the output or another new file. Nothing of it "
                    "was taken. Write the file with the type of the output. Or give a new "
                    "--output, and --schema with a type that holds both.",
                    remedy="new-columns",
                )
            if missing := each.of_kind("removed"):
                added = each.of_kind("added")
                also = f" and also has {_named(added)}" if added else ""
                raise ConfigError(
                    f"{each.path} lacks the columns {_named(missing)}{also}: a CSV file is read by "
                    "its header, in its first line. Add them to the file, or give --schema with "
                    "the columns that the files have now. Nothing of it was taken.",
                    remedy="new-columns",
                )
        new = [each for each in mismatches if each.of_kind("added")]
        if new and options.new_columns not in (["ignore", "add"] if may_add else ["ignore"]):
            which = "the first file" if options.schema is None else "--schema"
            if record is not None:
                which = f"--output {options.output}"
            raise ConfigError(
                f"INPUT has columns that {which} lacks: {_listed(new)}. Nothing of them was taken. "
                "Give --new-columns add to take them in from now on, --new-columns ignore to leave "
                "them out, or --schema with the columns that you want.",
                remedy="new-columns",
            )


def _listed(mismatches: Sequence[Mismatch]) -> str:
    examples = "; ".join(f"{each.path} has {_named(each.changes)}" for each in mismatches[:_SHOWN])
    more = len(mismatches) - _SHOWN
    return f"{examples}; and {more:,} more files" if more > 0 else examples


def _named(every: Sequence[Change]) -> str:
    columns = [
        repr(change.column)
        if change.now is None
        else f"{change.column!r} ({type_text(change.now)})"
        for change in every
    ]
    return some_of(columns, _SHOWN)

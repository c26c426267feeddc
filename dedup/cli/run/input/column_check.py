"""Which files have columns that the output does not know.

Spark reads files with the columns that it is given, and leaves out others without a word.
"""

from __future__ import annotations

import json
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812

from dedup.catalog.uri import literal
from dedup.cli.run.input import file_columns
from dedup.cli.run.input.csv_records import Counted, CsvRecords
from dedup.cli.run.input.csv_values import spelled_alike
from dedup.cli.run.input.input_files import Stamp, folded, separator, stamp_of
from dedup.cli.run.input.long_records import refuse_long_json
from dedup.cli.run.input.schema_change import Change, changes, joined
from dedup.cli.run.input.source import InputColumns, exact_columns
from dedup.cli.run.job import Job
from dedup.cli.stop import StopRequest
from dedup.errors import DataError
from dedup.sources.files.exact_values import unreadable
from dedup.sources.files.folder_columns import folder_names
from dedup.sources.files.parquet_input import spark_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Options of Spark's JSON reader under which a file is not one JSON value a line, in UTF-8.
_JSON_SYNTAX = ("multiline", "linesep", "encoding", "charset")


@dataclass(frozen=True, slots=True)
class Unlike:
    """A file whose columns are not those that are known.

    Parameters
    ----------
    path : Path
    columns : StructType or None
        All columns of the file; None where those of its folders are meant.
    changes : tuple of Change
        What is to be decided about.
    """

    path: Path
    columns: T.StructType | None
    changes: tuple[Change, ...]

    def of_kind(self, *kinds: str) -> list[Change]:
        """Return its changes of these kinds."""
        return [change for change in self.changes if change.kind in kinds]


class ColumnCheck:
    """Compares the columns of files with the known ones, each file once.

    Parameters
    ----------
    spark : SparkSession
        Is asked for the columns of files that seem to differ.
    job : Job
    columns : InputColumns
        The known ones.
    stop : StopRequest, optional
        Ends a look at the text of files with a KeyboardInterrupt.
    published : container of str
        Files whose rows show already, though their micro-batch has yet to be finished: they must
        stay as they are.

    Attributes
    ----------
    alike : Path or None
        One of the CSV files with the known header.
    """

    def __init__(
        self,
        spark: SparkSession,
        job: Job,
        columns: InputColumns,
        *,
        stop: StopRequest | None = None,
        published: Container[str] = (),
    ) -> None:
        self._stop = stop
        self._published = published
        self.alike: Path | None = None
        self._spark = spark
        self._job = job
        self._columns = columns
        self._settings = folded(job.files.reader_options | dict(job.options.read_options))
        self._csv: dict[str, Counted] = {}
        self._seen: dict[str, Stamp] = {}

    def settled(self, columns: InputColumns, stamps: Mapping[str, Stamp]) -> None:
        """Go on with these columns, to which these files need not be compared again."""
        self._columns = columns
        self._seen.update(stamps)

    def look(self, stamps: Mapping[str, Stamp]) -> list[Unlike]:
        """Return those of the files whose columns differ.

        Raises
        ------
        DataError
            For a file whose columns cannot be read.
        """
        fresh = [Path(path) for path, stamp in stamps.items() if self._seen.get(path) != stamp]
        if not fresh:
            return []
        self.check_text(fresh)
        look = {"csv": self._look_csv, "json": self._look_json}
        in_files = look.get(self._job.files.file_format, self._look_columnar)
        found = self._look_folders(fresh) + in_files(fresh)
        self._seen.update(stamps)
        return found

    def check_text(self, paths: Iterable[Path]) -> None:
        """Refuse text files with a record that is too long, and CSV that Spark would misread.

        Raises
        ------
        DataError
            For the first one, with what is wrong and where.
        """
        fresh = [path for path in paths if str(path) not in self._published]
        look = {"csv": self._counted, "json": self._refuse_long}.get(self._job.files.file_format)
        if look is not None:
            with ThreadPoolExecutor(self._job.options.cores) as pool:
                for _ in pool.map(look, fresh):
                    pass

    def _refuse_long(self, path: Path) -> None:
        refuse_long_json(path, self._settings)

    def _counted(self, path: Path) -> Counted | None:
        """Rows and header of a CSV file, None if it cannot be opened; Spark says what is wrong."""
        # A file whose rows show already must stay as it is.
        passed = (DataError,) if str(path) in self._published else ()
        with suppress(OSError, pa.ArrowException, *passed):
            self._csv[str(path)] = CsvRecords(self._settings).count(path, self._stop)
        return self._csv.get(str(path))

    def records_of(self, path: Path) -> int:
        """Return the number of records in a CSV file.

        Raises
        ------
        DataError
            If they cannot be counted.
        """
        counted = self._csv.get(str(path)) or self._counted(path)
        if counted is None:
            raise DataError(
                f"{path} is compressed in a way that only Spark can read, so its text cannot be "
                "checked. Nothing of it was published. Put it there packed with gzip or unpacked, "
                "and run again.",
                remedy="bad-records",
            )
        return counted.rows

    def look_again(self, paths: Sequence[str]) -> list[Unlike]:
        """Look at files as they are now; those that have gone are left out."""
        stamps = {}
        for path in paths:
            try:
                stamps[path] = stamp_of(os.stat(path))
            except FileNotFoundError:
                continue
        return self.look(stamps)

    def columns_of(self, unlike: Sequence[Unlike]) -> T.StructType:
        """Return the columns of the files together."""
        if self._job.files.file_format == "json":
            merged = self._inferred([one.path for one in unlike])
            if merged is not None:
                return merged
        first, *others = [one.columns for one in unlike if one.columns is not None]
        for columns in others:
            joint = joined(first, columns)
            assert isinstance(joint, T.StructType)
            first = joint
        return first

    def _look_folders(self, paths: Sequence[Path]) -> list[Unlike]:
        names = {name.lower() for name in self._columns.schema.names}
        first: dict[str, Path] = {}
        for path in paths:
            for name in folder_names(path, self._job.files.root):
                if name.lower() not in names:
                    first.setdefault(name, path)
        return [
            Unlike(path, None, (Change(name, "added", None, T.StringType()),))
            for name, path in first.items()
        ]

    def _own(self) -> T.StructType:
        columns = self._columns.read
        if not self._job.files.partitioned:
            return columns
        folders = self._job.files.folder_columns
        return T.StructType([f for f in columns.fields if f.name.lower() not in folders])

    def _look_columnar(self, paths: Sequence[Path]) -> list[Unlike]:
        first: dict[bytes, Path] = {}
        with ThreadPoolExecutor(self._job.options.cores) as pool:
            for path, kind in zip(paths, pool.map(self._kind, paths), strict=True):
                if kind:
                    first.setdefault(kind, path)
        own, found = self._own(), []
        for path in first.values():
            columns = self._inferred([path])
            if columns is None:
                raise unreadable(path, file_columns.fault(path, self._job.files.file_format))
            differ = [c for c in changes(own, columns) if c.kind not in ("removed", "narrower")]
            if differ:
                found.append(Unlike(path, columns, tuple(differ)))
        return found

    def _kind(self, path: Path) -> bytes | None:
        try:
            return file_columns.kind(path, self._job.files.file_format)
        except (OSError, pa.ArrowException):
            # Spark decides, and names it.
            return str(path).encode()

    def _look_json(self, paths: Sequence[Path]) -> list[Unlike]:
        names: Sequence[file_columns.Names | None] = [None] * len(paths)
        if not any(name in _JSON_SYNTAX for name in self._settings):
            with ThreadPoolExecutor(self._job.options.cores) as pool:
                names = list(pool.map(file_columns.json_names, paths))
        own, found = self._own(), []
        columns_of: dict[str, T.StructType | None] = {}
        for path, told in zip(paths, names, strict=True):
            if told is not None and file_columns.are_known(told, own):
                continue
            # Spark is asked once for all files with the same names.
            key = str(path) if told is None else json.dumps(told, sort_keys=True)
            if key not in columns_of:
                columns_of[key] = self._inferred([path])
            columns = columns_of[key]
            if columns is None:
                raise unreadable(path, "it is damaged, or compressed in another way than named")
            # Values of another type are judged record by record.
            seen = changes(own, columns, exact=True)
            differ = [c for c in seen if c.kind in ("added", "respelled")]
            if differ:
                found.append(Unlike(path, columns, tuple(differ)))
        return found

    def _look_csv(self, paths: Sequence[Path]) -> list[Unlike]:
        if (self._settings["header"], self._settings["enforceschema"]) != ("true", "false"):
            return []
        quote = self._settings.get("quote", '"')
        own, found = self._own(), []
        columns_of: dict[str, T.StructType | None] = {}
        for path in paths:
            counted = self._csv.get(str(path)) or self._counted(path)
            if counted is None or counted.header is None:
                continue
            header = counted.header
            try:
                names = file_columns.csv_names(header, separator(self._settings), quote)
            except ValueError as error:
                raise _unnamed(path, str(error)) from None
            if names is None or _folded(names) != _folded(own.names):
                if header not in columns_of:
                    columns_of[header] = self._inferred([path])
                columns = columns_of[header]
                # What the types are is not found, but given.
                differences = [] if columns is None else changes(own, columns)
                differ = [c for c in differences if c.kind in ("added", "removed")]
                if differ:
                    found.append(Unlike(path, columns, tuple(differ)))
                    continue
                if columns is not None and _folded(columns.names) != _folded(own.names):
                    raise _reordered(path, columns, own)
            self.alike = path
        return found

    def _inferred(self, paths: Sequence[Path]) -> T.StructType | None:
        """Columns as Spark infers them, None where it cannot: what is wrong shows on reading."""
        file_format = self._job.files.file_format
        reader = self._spark.read.format(file_format).options(**self._settings)
        if file_format == "json":
            reader = reader.option("mode", "DROPMALFORMED")
        if file_format == "csv" and self._job.options.infer:
            reader = reader.option("inferSchema", "true")
        try:
            places = [literal(str(path)) for path in paths]
            schema = spark_columns(reader, places, paths)
            if file_format == "csv" and self._job.options.infer:
                schema = spelled_alike(reader, places, schema, (), self._settings)
        except Exception:
            return None
        if file_format == "json":
            return exact_columns(schema, self._job.options, self._job.files, paths)
        return schema


def _unnamed(path: Path, wrong: str) -> DataError:
    return DataError(
        f"The header of {path} {wrong}, and a CSV file is read by its header. Nothing of it was "
        "taken. Mend its first line under its name. Or give, with a new --output, --schema with a "
        "name for every column, and --read-option enforceSchema=true to pass over the header.",
        remedy="new-columns",
    )


def _reordered(path: Path, columns: T.StructType, own: T.StructType) -> DataError:
    return DataError(
        f"{path} has the columns {', '.join(columns.names)}, and the first file has them in "
        f"another order: {', '.join(own.names)}. Nothing of it was taken. Write the file again "
        "under its name, in that order.",
        remedy="new-columns",
    )


def _folded(names: Sequence[str]) -> list[str]:
    return [name.lower() for name in names]

"""The input folder as a stream of rows: which files, which columns, read without forgiving."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dedup.cli.failures import explain
from dedup.cli.run_options import RunOptions
from dedup.errors import ConfigError, DataError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

_SUFFIXES = {
    "csv": (".csv", ".csv.gz"),
    "json": (".json", ".json.gz", ".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz"),
    "parquet": (".parquet",),
}
_FORMAT_OF = {suffix: name for name, suffixes in _SUFFIXES.items() for suffix in suffixes}

#: Column that gets the text of a record that cannot be read.
CORRUPT = "_dedup_corrupt"

#: Doubled quotes as RFC 4180 has them, whitespace as it is, and a header that each file must meet.
_CSV_READ = {"header": "true", "enforceSchema": "false", "escape": '"'}
_WRITE = {
    "csv": {
        "header": "true",
        "escape": '"',
        "ignoreLeadingWhiteSpace": "false",
        "ignoreTrailingWhiteSpace": "false",
    },
    "json": {"ignoreNullFields": "false"},
    "parquet": {},
}


class Stamp(NamedTuple):
    """What tells that a file was written again."""

    mtime_ns: int
    size: int


def stamp_of(status: os.stat_result) -> Stamp:
    """Return the stamp of a file that was looked at."""
    return Stamp(status.st_mtime_ns, status.st_size)


@dataclass(frozen=True, slots=True)
class InputColumns:
    """The columns of the input.

    Parameters
    ----------
    schema : StructType
        Those that go on.
    read : StructType
        Those that Spark reads; more where a CSV header has some that are left out.
    """

    schema: StructType
    read: StructType


@dataclass(frozen=True, slots=True)
class InputFiles:
    """What the names below INPUT say.

    Parameters
    ----------
    root : Path
        Folder to give to Spark.
    file_format : str
        ``csv``, ``json`` or ``parquet``.
    pattern : str or None
        Glob that the names must match; None: every file that is not hidden.
    partitioned : bool
        There are folders such as ``day=2024-05-01``, whose names are columns.
    folder_columns : frozenset of str
        These names in lower case, as of the files that are there now.
    compressed : bool
        All files are gzipped.
    paths : tuple of Path
        The files that match, the oldest first.
    stamps : dict of str to Stamp
        Theirs, by path, in the same order.
    left_out : int
        How many do not.
    """

    root: Path
    file_format: str
    pattern: str | None
    partitioned: bool
    folder_columns: frozenset[str]
    compressed: bool
    paths: tuple[Path, ...]
    stamps: dict[str, Stamp]
    left_out: int

    @property
    def reader_options(self) -> dict[str, str]:
        """Options of Spark's file source that make these and later files the input."""
        options = {
            "mode": "FAILFAST",
            # The default skips files a week older than the newest one, without a word.
            "maxFileAge": "36500d",
        }
        if self.file_format == "csv":
            options |= _CSV_READ
        if self.file_format == "parquet":
            options["mergeSchema"] = "true"
        if self.pattern is not None:
            options["pathGlobFilter"] = self.pattern
        if not self.partitioned:
            options["recursiveFileLookup"] = "true"
        return options


def find_files(options: RunOptions, *, by_name: bool = False) -> InputFiles:
    """Look at the names below INPUT.

    Parameters
    ----------
    options : RunOptions
    by_name : bool
        Take only files that are named by the format, even where it is given.

    Raises
    ------
    ConfigError
        Where no format was given and the names do not agree on one.
    """
    if options.input.is_file():
        root, pattern = options.input.parent, literal(options.input.name)
        files = [options.input]
    else:
        root, pattern = options.input, None
        files = list(_visible_files(options.input))
    found = {path: stamp_of(path.stat()) for path in files}
    files.sort(key=lambda path: (found[path].mtime_ns, path))
    kinds = Counter(_format_of(path.name) for path in files)
    total = len(files)
    file_format = options.file_format
    if file_format is None or (by_name and pattern is None):
        file_format = file_format or _guess(options.input, kinds)
        if pattern is None:
            pattern = "*{" + ",".join(_SUFFIXES[file_format]) + "}"
        files = [path for path in files if _format_of(path.name) == file_format]
    folders = frozenset(name.lower() for path in files for name in folder_names(path, root))
    return InputFiles(
        root=root,
        file_format=file_format,
        pattern=pattern,
        partitioned=bool(folders),
        folder_columns=folders,
        compressed=bool(files) and all(path.name.endswith(".gz") for path in files),
        paths=tuple(files),
        stamps={str(path): found[path] for path in files},
        left_out=total - len(files),
    )


def read_schema(spark: SparkSession, options: RunOptions, files: InputFiles) -> StructType:
    """Columns of the input, partition folders included.

    Raises
    ------
    ConfigError
        Where there is nothing to read them from, the DDL is wrong, or two columns share a name.
    DataError
        Where a file that they should be read from cannot be read.
    """
    from pyspark.errors import ParseException
    from pyspark.sql.types import StructType

    reader = spark.read.format(files.file_format)
    if files.file_format == "csv" and options.infer:
        reader = reader.option("inferSchema", "true")
    reader = reader.options(**read_settings(options, files))
    if options.schema is not None:
        try:
            reader = reader.schema(options.schema)
        except ParseException as error:
            reason = (error.getMessage() or str(error)).strip().split("\n")[0]
            raise ConfigError(
                f"--schema {options.schema!r} is not DDL such as 'id STRING, amount INT': {reason}"
            ) from None
    elif not files.paths:
        raise ConfigError(
            f"INPUT {options.input} holds no {files.file_format} files to read the columns from; "
            "add files, or give --schema."
        )
    try:
        if files.file_format == "csv" and options.schema is None and not options.infer:
            schema = _header(reader, files)
        else:
            schema = reader.load(str(files.root)).schema
    except Exception as error:
        raise DataError(
            f"The columns of INPUT {options.input} cannot be read: {explain(error).message}. Mend "
            "the file, or give --schema, or --bad-records where single records are wrong.",
            remedy="bad-records",
        ) from None
    schema = StructType([field for field in schema.fields if field.name != CORRUPT])
    repeated = [n for n, k in Counter(f.name.lower() for f in schema.fields).items() if k > 1]
    if repeated:
        raise ConfigError(
            f"INPUT {options.input} has two columns named {repeated[0]!r}; rename one."
        )
    return schema


def read_stream(
    spark: SparkSession, options: RunOptions, files: InputFiles, columns: InputColumns
) -> DataFrame:
    """Return the files as a stream, the oldest first; later ones are for later runs."""
    reader = spark.readStream.format(files.file_format).schema(columns_to_read(options, columns))
    settings = read_settings(options, files)
    settings["maxFilesPerTrigger"] = str(options.files_per_trigger)
    return reader.options(**settings).load(str(files.root))


def read_settings(options: RunOptions, files: InputFiles) -> dict[str, str]:
    """Return the options of Spark's reader."""
    settings = files.reader_options | dict(options.read_options)
    if options.bad_records != "error":
        settings |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    return settings


def columns_to_read(options: RunOptions, columns: InputColumns) -> StructType:
    """Return the columns to read, with one for the text of bad records where they are told."""
    from pyspark.sql.types import StringType, StructField, StructType

    if options.bad_records == "error":
        return columns.read
    return StructType([*columns.read.fields, StructField(CORRUPT, StringType())])


def writer_options(options: RunOptions, files: InputFiles) -> tuple[str, dict[str, str]]:
    """Format and options to write with, so that the output reads as the input did."""
    file_format = options.output_format or files.file_format
    settings = dict(_WRITE[file_format])
    if file_format == files.file_format:
        shared = {"sep", "delimiter", "quote", "escape", "encoding", "charset", "header"}
        settings |= {k: v for k, v in options.read_options if k in shared}
    if files.compressed and file_format != "parquet":
        settings["compression"] = "gzip"
    return file_format, settings


def _header(reader: DataFrameReader, files: InputFiles) -> StructType:
    """Columns of the oldest file that has any; the others must have the same ones."""
    reader = reader.option("basePath", str(files.root))
    for path in files.paths:
        schema = reader.load(literal(str(path))).schema
        if path.stat().st_size and schema.fields:
            break
    return schema


def named_column(name: str) -> Column:
    """The column of that name; a dot in it asks for no field of a struct."""
    from pyspark.sql import functions as fn

    return fn.col("`" + name.replace("`", "``") + "`")


def folder_names(path: Path, root: Path) -> Iterator[str]:
    """Names in folders such as ``day=2024-05-01`` on the way to a file."""
    if path.parent != root:
        yield from (
            part.partition("=")[0] for part in path.relative_to(root).parts[:-1] if "=" in part
        )


def _visible_files(root: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(root):
        # The names that Spark's own listing leaves out.
        folders[:] = sorted(f for f in folders if not _hidden(f))
        for name in sorted(names):
            if not _hidden(name):
                yield Path(parent, name)


def _hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _format_of(name: str) -> str | None:
    lowered = name.lower()
    for suffix, file_format in _FORMAT_OF.items():
        if lowered.endswith(suffix):
            return file_format
    return None


def _guess(root: Path, kinds: Counter[str | None]) -> str:
    known = {kind: count for kind, count in kinds.items() if kind is not None}
    if len(known) == 1:
        return next(iter(known))
    if not known:
        raise ConfigError(
            f"INPUT {root} holds no file named as csv, json or parquet; give --format."
        )
    found = " and ".join(f"{count} {kind}" for kind, count in sorted(known.items()))
    raise ConfigError(f"INPUT {root} holds {found} files; give --format, or a folder of one kind.")


def literal(name: str) -> str:
    """Return a name or path as a glob that matches nothing else."""
    return "".join("\\" + c if c in "*?[]{}\\" else c for c in name)

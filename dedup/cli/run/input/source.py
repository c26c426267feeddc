"""The input as a stream of rows: which columns, read without forgiving."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dedup.catalog.uri import literal
from dedup.cli.failures import explain
from dedup.cli.run.input.csv_values import CORRUPT, as_text, spelled_alike, with_types
from dedup.cli.run.input.input_files import InputFiles, folded, is_true
from dedup.cli.run.input.json_input import FILE, TEXT, read_json
from dedup.cli.run.run_options import COLUMNAR, RunOptions
from dedup.errors import ConfigError, DataError
from dedup.sources.files.parquet_input import spark_columns
from dedup.spark.driver.strict_json import CAUSE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import StructType

#: Spark's own formats end at milliseconds.
_MICROSECONDS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_WRITE = {
    "csv": {
        **_MICROSECONDS,
        "header": "true",
        "escape": '"',
        "ignoreLeadingWhiteSpace": "false",
        "ignoreTrailingWhiteSpace": "false",
    },
    "json": {"ignoreNullFields": "false", **_MICROSECONDS},
    "parquet": {},
}


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
    from pyspark.sql.types import StringType

    reader = spark.read.format(files.file_format)
    if files.file_format == "csv" and options.infer:
        reader = reader.option("inferSchema", "true")
    reader = reader.options(**read_settings(options, files))
    if files.file_format == "json" and options.bad_records != "error":
        # As for PERMISSIVE, but no column is added.
        reader = reader.option("mode", "DROPMALFORMED")
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
    elif files.file_format == "csv" and "value" in files.folder_columns:
        raise ConfigError(
            "INPUT has folders value=..., which Spark takes for the lines of a CSV file when it "
            "looks for columns. Give --schema, or rename the folders."
        )
    try:
        if files.file_format == "csv" and options.schema is None and not options.infer:
            schema = _header(reader, files)
        else:
            schema = spark_columns(reader, files.place, files.paths, files.root)
        if files.file_format == "csv":
            schema = _csv_columns(reader, schema, options, files)
    except ConfigError:
        raise
    except Exception as error:
        reason = explain(error).message.rstrip(".")
        way = "Mend the file, or give --schema, or --bad-records if single records are wrong."
        if files.file_format in COLUMNAR:
            reason = _fault(files) or reason
            way = "Write the file again under its name, or give --schema without such a column."
        elif files.file_format == "json":
            reason = _bad_json(spark, options, files) or reason
            way = (
                "Mend the file. Or give --read-option multiLine=true if a record has several "
                "lines, or --bad-records if single records are wrong."
            )
        raise DataError(
            f"The columns of INPUT {options.input} cannot be read: {reason}. {way}",
            remedy="bad-records",
        ) from None
    if files.file_format == "json" and options.schema is None:
        schema = exact_columns(schema, options, files, files.paths)
    for field in schema.fields:
        # The oldest file may lie below k=__HIVE_DEFAULT_PARTITION__.
        if field.dataType.typeName() == "void":
            field.dataType = StringType()
    repeated = [n for n, k in Counter(f.name.lower() for f in schema.fields).items() if k > 1]
    if repeated:
        raise ConfigError(
            f"INPUT {options.input} has two columns named {repeated[0]!r}; rename one."
        )
    return schema


def _csv_columns(
    reader: DataFrameReader, schema: StructType, options: RunOptions, files: InputFiles
) -> StructType:
    for field in schema.fields:
        if field.dataType.typeName() == "variant":
            raise ConfigError(
                f"--schema makes the column {field.name!r} VARIANT, and Spark would guess a type "
                "for each text: 007 would become 7. Declare it STRING."
            )
    if not options.infer:
        return schema
    folders = files.folder_columns if files.partitioned else ()
    settings = folded(read_settings(options, files))
    return spelled_alike(reader, files.place, schema, folders, settings)


def exact_columns(
    inferred: StructType, options: RunOptions, files: InputFiles, paths: Iterable[Path]
) -> StructType:
    """Return the columns that Spark inferred of JSON files so that no value is lost or rounded."""
    from pyspark.sql import types as T  # noqa: N812

    from dedup.cli.run.input.file_columns import with_empty_objects

    settings = folded(dict(options.read_options))
    if not {"samplingratio", "dropfieldifallnull"} & set(settings):
        is_whole = is_true(settings, "multiline")
        inferred = with_empty_objects(inferred, paths, is_whole=is_whole)
    ids = {name.lower() for name in options.id}
    return T.StructType(
        [
            # A double would make one ID of several.
            T.StructField(field.name, T.StringType())
            if isinstance(field.dataType, T.DoubleType) and field.name.lower() in ids
            else field
            for field in inferred.fields
        ]
    )


def read_stream(
    spark: SparkSession, options: RunOptions, files: InputFiles, columns: InputColumns
) -> DataFrame:
    """Return the files as a stream, the oldest first; later ones are for later runs.

    Behind the columns of JSON and CSV stand those that `good_rows` needs.
    """
    return _read(spark.readStream, files.place, files, columns, stream_options(options, files))


def read_files(
    spark: SparkSession,
    options: RunOptions,
    files: InputFiles,
    columns: InputColumns,
    places: list[str],
) -> DataFrame:
    """Return files of the input as a batch, with the columns that `read_stream` has."""
    settings = {**read_settings(options, files), "basePath": str(files.root)}
    return _read(spark.read, places, files, columns, settings)


def _read(
    source: DataFrameReader | DataStreamReader,
    places: Any,
    files: InputFiles,
    columns: InputColumns,
    settings: dict[str, str],
) -> DataFrame:
    from pyspark.sql.types import StringType

    if files.file_format == "json":
        return read_json(source, places, files, columns.read, settings)
    reader = source.format(files.file_format).options(**settings)
    if files.file_format != "csv":
        return reader.schema(columns.read).load(places)
    texts = as_text(columns.read, files.folder_columns if files.partitioned else ())
    # Ragged records have their text in a column.
    reader = reader.options(mode="PERMISSIVE", columnNameOfCorruptRecord=CORRUPT)
    rows = reader.schema(texts.add(CORRUPT, StringType())).load(places)
    return with_types(rows, columns.read, folded(settings))


def stream_options(options: RunOptions, files: InputFiles) -> dict[str, str]:
    """Return the options of Spark's reader of streams."""
    limit = {"maxFilesPerTrigger": str(options.files_per_trigger)}
    return read_settings(options, files) | limit


def read_settings(options: RunOptions, files: InputFiles) -> dict[str, str]:
    """Return the options of Spark's reader."""
    settings = files.reader_options | dict(options.read_options)
    if files.file_format in ("csv", "json"):
        # Spark would take a column of its default name, `_corrupt_record`, for its own.
        settings = {"columnNameOfCorruptRecord": CORRUPT} | settings
    if options.bad_records != "error":
        settings |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    return settings


def writer_options(options: RunOptions, files: InputFiles) -> tuple[str, dict[str, str]]:
    """Format and options to write with, as the input has them, but in UTF-8: it has all texts."""
    file_format = options.output_format or files.file_format
    settings = dict(_WRITE[file_format])
    if file_format == files.file_format:
        shared = {"sep", "delimiter", "quote", "escape", "header"}
        settings |= {k: v for k, v in options.read_options if k in shared}
    if files.compressed and file_format != "parquet":
        settings["compression"] = "gzip"
    return file_format, settings


def _fault(files: InputFiles) -> str | None:
    from dedup.cli.run.input.file_columns import NO_FAULT, fault, unlike

    paths = [path for path in files.paths if path.stat().st_size]
    faults = ((path, fault(path, files.file_format)) for path in paths)
    found = next((f"{path}: {why}" for path, why in faults if why != NO_FAULT), None)
    return found or (unlike(paths) if files.file_format == "parquet" else None)


def _bad_json(spark: SparkSession, options: RunOptions, files: InputFiles) -> str | None:
    from pyspark.sql import functions as fn
    from pyspark.sql import types as T  # noqa: N812

    from dedup.cli.run.input.file_columns import line_of

    columns = T.StructType([T.StructField("_", T.StringType())])
    settings = read_settings(options, files)
    rows = read_json(spark.read, files.place, files, columns, settings)
    bad = None
    with suppress(Exception):
        bad = rows.where(rows[CAUSE].isNotNull()).select(FILE, CAUSE, fn.md5(TEXT)).first()
    if bad is None:
        return None
    file, cause, digest = bad
    return f"{file}: {cause}{line_of(Path(file), digest, bytes)}".rstrip(".")


def _header(reader: DataFrameReader, files: InputFiles) -> StructType:
    """Columns of the oldest file that has any; the others must have the same ones."""
    reader = reader.option("basePath", str(files.root))
    for path in files.paths:
        schema = reader.load(literal(str(path))).schema
        if path.stat().st_size and schema.fields:
            break
    return schema

"""Read the input as rows without losing or changing a value, and find its columns."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import ParseException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamReader

from dedup.catalog.uri import literal
from dedup.cli.failures import explain
from dedup.cli.run.input.columns import first_fault
from dedup.cli.run.input.csv_values import CORRUPT, as_text, spelled_alike, with_types
from dedup.cli.run.input.files import folded, is_true, line_of
from dedup.cli.run.input.json_files import FILE, TEXT, read_json, with_empty_objects
from dedup.cli.run.job import Job
from dedup.cli.run.options import COLUMNAR
from dedup.errors import ConfigError, DataError
from dedup.sources.files.parquet_input import spark_columns
from dedup.sources.strict_json import CAUSE

#: Formats with which Spark writes microseconds. Spark's default formats end at milliseconds.
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
    """Columns of the output (`schema`), and columns that Spark reads (`read`).

    Spark reads further columns if a CSV header has columns that the output leaves out.
    """

    schema: T.StructType
    read: T.StructType


def read_schema(spark: SparkSession, job: Job) -> T.StructType:
    """Return the columns of the input, including columns that folders name."""
    options, files, reader = job.options, job.files, _schema_reader(spark, job)
    is_csv = files.file_format == "csv"
    try:
        if is_csv and not options.infer and options.schema is None:
            schema = _header(reader, job)
        else:
            schema = spark_columns(reader, files.place, files.paths, files.root)
        if is_csv and options.infer:
            settings = folded(read_settings(job))
            schema = spelled_alike(reader, files.place, schema, files.partitions, settings)
    except Exception as error:
        raise _unreadable(error, spark, job) from None
    if files.file_format == "json" and options.schema is None:
        schema = exact_columns(schema, job, files.paths)
    for field in schema.fields:
        # Spark infers no type if the oldest file is in a folder k=__HIVE_DEFAULT_PARTITION__.
        if field.dataType.typeName() == "void":
            field.dataType = T.StringType()
        if is_csv and field.dataType.typeName() == "variant":
            raise ConfigError(
                f"--schema makes the column {field.name!r} VARIANT, and Spark would guess a type "
                "for each text: 007 would become 7. Declare it STRING."
            )
    return schema


def schema_reader(spark: SparkSession, job: Job, *, skips_bad: bool) -> DataFrameReader:
    """Return a reader that infers columns. With `skips_bad` the reader skips bad records."""
    file_format = job.files.file_format
    reader = spark.read.format(file_format).options(**read_settings(job))
    if file_format == "csv" and job.options.infer:
        reader = reader.option("inferSchema", "true")
    if file_format == "json" and skips_bad:
        # DROPMALFORMED infers the same as PERMISSIVE, but adds no column.
        reader = reader.option("mode", "DROPMALFORMED")
    return reader


def _schema_reader(spark: SparkSession, job: Job) -> DataFrameReader:
    options, files = job.options, job.files
    reader = schema_reader(spark, job, skips_bad=options.bad_records != "error")
    if options.schema is not None:
        try:
            return reader.schema(options.schema)
        except ParseException as error:
            reason = (error.getMessage() or str(error)).strip().split("\n")[0]
            raise ConfigError(
                f"--schema {options.schema!r} is not DDL such as 'id STRING, amount INT': {reason}"
            ) from None
    if not files.paths:
        raise ConfigError(
            f"INPUT {options.input} holds no {files.file_format} files to read the columns from; "
            "add files, or give --schema."
        )
    if files.file_format == "csv" and "value" in files.folder_columns:
        raise ConfigError(
            "INPUT has folders value=..., which Spark takes for the lines of a CSV file when it "
            "looks for columns. Give --schema, or rename the folders."
        )
    return reader


def _unreadable(error: Exception, spark: SparkSession, job: Job) -> DataError:
    file_format = job.files.file_format
    reason = explain(error).message.rstrip(".")
    way = "Fix the file, or give --schema, or --bad-records if single records are wrong."
    if file_format in COLUMNAR:
        paths = [path for path in job.files.paths if path.stat().st_size]
        reason = first_fault(paths, file_format) or reason
        way = "Write the file again under its name, or give --schema without such a column."
    elif file_format == "json":
        reason = _bad_json(spark, job) or reason
        way = (
            "Fix the file. Or give --read-option multiLine=true if a record has several lines, or "
            "--bad-records if single records are wrong."
        )
    return DataError(
        f"The columns of INPUT {job.options.input} cannot be read: {reason}. {way}",
        remedy="bad-records",
    )


def exact_columns(inferred: T.StructType, job: Job, paths: Iterable[Path]) -> T.StructType:
    """Return the columns that Spark inferred from JSON, with types that hold every value."""
    settings = folded(dict(job.options.read_options))
    if not {"samplingratio", "dropfieldifallnull"} & set(settings):
        is_whole = is_true(settings, "multiline")
        inferred = with_empty_objects(inferred, paths, is_whole=is_whole)
    ids = {name.lower() for name in job.options.id}
    return T.StructType(
        [
            # A double would round large numbers, so that several IDs become equal.
            T.StructField(field.name, T.StringType())
            if isinstance(field.dataType, T.DoubleType) and field.name.lower() in ids
            else field
            for field in inferred.fields
        ]
    )


def read_stream(spark: SparkSession, job: Job, columns: InputColumns) -> DataFrame:
    """Return a stream of the files' rows, the oldest file first. It ends with the known files.

    Rows of JSON and CSV have additional columns that `good_rows` needs.
    """
    return _read(spark.readStream, job.files.place, job, columns, stream_options(job))


def read_files(
    spark: SparkSession, job: Job, columns: InputColumns, paths: Iterable[str | Path] | None = None
) -> DataFrame:
    """Return the rows of some files, or of all files, with the columns of `read_stream`."""
    settings = read_settings(job) | {"basePath": str(job.files.root)}
    places = job.files.place if paths is None else [literal(str(path)) for path in paths]
    return _read(spark.read, places, job, columns, settings)


def _read(
    source: DataFrameReader | DataStreamReader,
    places: Any,
    job: Job,
    columns: InputColumns,
    settings: dict[str, str],
) -> DataFrame:
    file_format, folders = job.files.file_format, job.files.partitions
    if file_format == "json":
        return read_json(source, places, folders, columns.read, settings)
    reader = source.format(file_format).options(**settings)
    if file_format != "csv":
        return reader.schema(columns.read).load(places)
    texts = as_text(columns.read, folders)
    # The column CORRUPT receives the text of a record with too many or too few values.
    reader = reader.options(mode="PERMISSIVE", columnNameOfCorruptRecord=CORRUPT)
    rows = reader.schema(texts.add(CORRUPT, T.StringType())).load(places)
    return with_types(rows, columns.read, folded(settings))


def stream_options(job: Job) -> dict[str, str]:
    return read_settings(job) | {"maxFilesPerTrigger": str(job.options.files_per_trigger)}


def read_settings(job: Job) -> dict[str, str]:
    settings = job.files.reader_options | dict(job.options.read_options)
    if job.files.file_format in ("csv", "json"):
        # By default Spark takes a user's column with the name `_corrupt_record` for its own column.
        settings = {"columnNameOfCorruptRecord": CORRUPT} | settings
    if job.options.bad_records != "error":
        settings |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    return settings


def writer_options(job: Job) -> tuple[str, dict[str, str]]:
    """Return the format and Spark's options of the output, which is always in UTF-8."""
    options, files = job.options, job.files
    file_format = options.output_format or files.file_format
    settings = dict(_WRITE[file_format])
    if file_format == files.file_format:
        shared = {"sep", "delimiter", "quote", "escape", "header"}
        settings |= {k: v for k, v in options.read_options if k in shared}
    if files.compressed and file_format != "parquet":
        settings["compression"] = "gzip"
    return file_format, settings


def _bad_json(spark: SparkSession, job: Job) -> str | None:
    columns = T.StructType([T.StructField("_", T.StringType())])
    rows = read_files(spark, job, InputColumns(columns, columns))
    bad = None
    with suppress(Exception):
        bad = rows.where(rows[CAUSE].isNotNull()).select(FILE, CAUSE, fn.md5(TEXT)).first()
    if bad is None:
        return None
    file, cause, digest = bad
    return f"{file}: {cause}{line_of(Path(file), digest, bytes)}".rstrip(".")


def _header(reader: DataFrameReader, job: Job) -> T.StructType:
    """Return the columns of the oldest file with a header. All other files must have the same."""
    reader = reader.option("basePath", str(job.files.root))
    for path in job.files.paths:
        schema = reader.load(literal(str(path))).schema
        if path.stat().st_size and schema.fields:
            break
    return schema

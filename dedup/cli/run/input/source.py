"""Find the columns of the input, and how its files are read."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from pyspark.errors import ParseException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import types as T  # noqa: N812

from dedup.cli.failures import explain
from dedup.cli.run.input.columns import first_fault
from dedup.cli.run.input.csv_values import spelled_alike
from dedup.cli.run.input.event_time import event_time, time_format_fault
from dedup.cli.run.input.json_files import with_empty_objects
from dedup.cli.run.job import Job
from dedup.cli.run.options import COLUMNAR
from dedup.errors import ConfigError, DataError, DedupError
from dedup.sinks.files.query import SourceFiles, read_rows
from dedup.sources.files.bypass import LeftToSpark
from dedup.sources.files.json_input import JsonFormat
from dedup.sources.files.parquet_input import spark_columns
from dedup.sources.files.scan import TextSource, first_bad_record
from dedup.sources.files.text_options import (
    folded,
    header_of,
    is_true,
    json_options,
    listing_options,
    text_format,
)
from dedup.sources.files.text_records import Unreadable
from dedup.spark.driver import checks
from dedup.spark.plan import HELPER_PREFIX

#: Names of added columns, see `read_files`.
FILE, TIME = f"{HELPER_PREFIX}file", f"{HELPER_PREFIX}time"
_CORRUPT = f"{HELPER_PREFIX}corrupt"


def read_schema(spark: SparkSession, job: Job) -> T.StructType:
    """Return the columns of the input, including columns that folders name."""
    options, files, reader = job.options, job.files, _schema_reader(spark, job)
    is_csv = files.file_format == "csv"
    try:
        if is_csv and not options.infer and options.schema is None:
            schema = reader.schema(_header(job)).load(files.place).schema
        else:
            schema = spark_columns(reader, files.place, files.paths, files.root)
        if is_csv and options.infer:
            settings = folded(read_settings(job))
            schema = spelled_alike(reader, files.place, schema, files.partitions, settings)
    except DedupError:
        raise
    except Exception as error:
        raise _unreadable(error, spark, job) from None
    if files.file_format == "json" and options.schema is None:
        schema = exact_columns(schema, job, files.paths)
    for field in schema.fields:
        # Spark infers no type if the oldest file is in a folder k=__HIVE_DEFAULT_PARTITION__.
        if field.dataType.typeName() == "void":
            field.dataType = T.StringType()
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
        reason = _bad_json(job) or reason
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
    is_whole = is_true(folded(dict(job.options.read_options)), "multiline")
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


def _bad_json(job: Job) -> str | None:
    columns = pa.schema([("_", pa.string())])
    text_format = JsonFormat(columns=columns, **json_options(dict(job.options.read_options)))
    for path in job.files.paths:
        with suppress(OSError, pa.ArrowException, Unreadable):
            if (fault := first_bad_record(path, text_format)) is not None:
                return fault
    return None


def _header(job: Job) -> T.StructType:
    """Return the columns of the oldest file with records. They are text."""
    names: list[str] = []
    for path in job.files.paths:
        if names := header_of(path, dict(job.options.read_options)):
            break
    return T.StructType([T.StructField(name, T.StringType()) for name in names])


def plan_stream(spark: SparkSession, job: Job, schema: T.StructType) -> DataFrame:
    """Return a stream of the files' rows, the oldest file first. It ends with the known files.

    Spark reads it only if the files are ORC, or Parquet that tasks cannot read.
    """
    if job.files.file_format not in COLUMNAR:
        return read_rows(spark.readStream, schema, listed_files(spark, job, schema))
    reader = spark.readStream.format(job.files.file_format).options(**_stream_options(job))
    return reader.schema(schema).load(job.files.place)


def read_files(spark: SparkSession, job: Job, schema: T.StructType) -> DataFrame:
    """Return the rows of all files. Spark reads only what `dedup run` leaves to it.

    If tasks read the files, rows have more columns: `FILE`, with the modification time in ms and
    URI of a row's file, and `TIME`, with the event time if ``--timestamp`` has to be converted.
    """
    source = listed_files(spark, job, schema)
    with suppress(LeftToSpark):
        if source.by_spark is None:
            time = None if source.time is None else TIME
            return read_rows(spark.read, schema, source, time_column=time, file_column=FILE)
    reader = spark.read.format(job.files.file_format).options(**read_settings(job))
    return reader.schema(schema).load(job.files.place)


def listed_files(spark: SparkSession, job: Job, schema: T.StructType) -> SourceFiles:
    """Return how tasks read the files."""
    options, files = job.options, job.files
    by_spark, text = None, None
    if files.file_format not in COLUMNAR:
        in_files = [f for f in schema.fields if f.name.lower() not in files.partitions]
        text = TextSource(
            root=files.root,
            format=text_format(
                T.StructType(in_files),
                files.file_format,
                dict(options.read_options),
                checks.time_zone(spark),
            ),
            skips_bad=options.bad_records != "error",
        )
    elif files.file_format == "orc":
        by_spark = "the input is orc"
    elif options.parquet == "spark":
        by_spark = "--parquet spark is given"
    elif (fault := time_format_fault(options)) is not None:
        by_spark = f"tasks cannot use --timestamp-format, because {fault}"
    return SourceFiles(
        place=files.place,
        options=_stream_options(job),
        folders=files.partitions,
        paths=files.paths if files.file_format == "parquet" else (),
        by_spark=by_spark,
        text=text,
        time=event_time(options, schema, checks.time_zone(spark)),
    )


def _stream_options(job: Job) -> dict[str, str]:
    settings = read_settings(job)
    if job.files.file_format not in COLUMNAR:
        settings = job.files.reader_options | listing_options(dict(job.options.read_options))
    return settings | {"maxFilesPerTrigger": str(job.options.files_per_trigger)}


def read_settings(job: Job) -> dict[str, str]:
    # By default Spark takes a user's column with the name `_corrupt_record` for its own column.
    corrupt = {"columnNameOfCorruptRecord": _CORRUPT}
    own = {} if job.files.file_format in COLUMNAR else corrupt
    return own | job.files.reader_options | dict(job.options.read_options)

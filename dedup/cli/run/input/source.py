"""Find the columns of the input, and how its files are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from pyspark.errors import ParseException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import types as T  # noqa: N812

from dedup.cli.failures import explain
from dedup.cli.run.input.columns import first_fault
from dedup.cli.run.input.csv_values import spelled_alike
from dedup.cli.run.input.event_time import event_time
from dedup.cli.run.input.files import folded, is_true
from dedup.cli.run.input.json_files import with_empty_objects
from dedup.cli.run.input.text import OF_FILES, header_of, json_options, session_zone, text_source
from dedup.cli.run.job import Job
from dedup.cli.run.options import COLUMNAR
from dedup.errors import ConfigError, DataError, DedupError
from dedup.sinks.files.query import SourceFiles, splits
from dedup.sources.files.bypass import text_schema, text_types
from dedup.sources.files.json_input import JsonFormat
from dedup.sources.files.parquet_input import spark_columns
from dedup.sources.files.scan import Scan, first_bad_record
from dedup.sources.files.text_records import Unreadable
from dedup.spark.driver.shipping import shipped
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
    reader = spark.readStream.format(job.files.file_format).options(**stream_options(job))
    columns = schema if job.files.file_format in COLUMNAR else text_types(schema)
    return reader.schema(columns).load(job.files.place)


def read_files(spark: SparkSession, job: Job, schema: T.StructType) -> DataFrame:
    """Return the rows of all files. Tasks read text, and Spark reads other formats.

    Text has more columns: `FILE`, with the modification time in ms and URI of a row's file, and
    `TIME`, with the event time if the column of ``--timestamp`` has to be converted.
    """
    files = job.files
    if files.file_format in COLUMNAR:
        return (
            spark.read.format(files.file_format)
            .options(**read_settings(job))
            .schema(schema)
            .load(files.place)
        )
    columns = text_schema(schema, session_zone(spark))
    folders = frozenset(name for name in columns.names if name.lower() in files.partitions)
    source = text_source(spark, job, schema)
    time = event_time(job.options, schema, session_zone(spark))
    scan = Scan(
        columns=columns,
        names=tuple(columns.names),
        folders=folders,
        now_column=None,
        time_column=None if time is None else TIME,
        time=time,
        file_column=FILE,
        text=source,
    )
    load = shipped(scan)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return load().rows(batches)

    listed = splits(spark.read, files.place, listing_options(job), text=source)
    times = [] if time is None else [T.StructField(TIME, T.TimestampType())]
    added = T.StructType([*text_types(schema).fields, *times, T.StructField(FILE, T.StringType())])
    return listed.mapInArrow(read, added)


def listed_files(spark: SparkSession, job: Job, schema: T.StructType) -> SourceFiles | str:
    """Return how tasks read the files, or why only Spark can read them."""
    options, files = job.options, job.files
    if files.file_format == "orc":
        return "the input is orc"
    is_text = files.file_format != "parquet"
    return SourceFiles(
        place=files.place,
        options=stream_options(job),
        folders=files.partitions,
        by_spark="--parquet spark is given" if options.parquet == "spark" and not is_text else None,
        text=text_source(spark, job, schema) if is_text else None,
        time=event_time(options, schema, session_zone(spark)),
    )


def stream_options(job: Job) -> dict[str, str]:
    settings = listing_options(job) if job.files.file_format not in COLUMNAR else read_settings(job)
    return settings | {"maxFilesPerTrigger": str(job.options.files_per_trigger)}


def listing_options(job: Job) -> dict[str, str]:
    """Return the options with which Spark lists files, without those for reading them."""
    given = {k: v for k, v in job.options.read_options if k.lower() in OF_FILES}
    return job.files.reader_options | given


def read_settings(job: Job) -> dict[str, str]:
    # By default Spark takes a user's column with the name `_corrupt_record` for its own column.
    corrupt = {"columnNameOfCorruptRecord": _CORRUPT}
    own = {} if job.files.file_format in COLUMNAR else corrupt
    return own | job.files.reader_options | dict(job.options.read_options)

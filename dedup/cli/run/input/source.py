"""Find the columns of the input, and how its files are read."""

from __future__ import annotations

from contextlib import suppress

from pyspark.errors import ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from dedup.cli.failures import explain
from dedup.cli.run.input.columns import first_fault
from dedup.cli.run.input.event_time import event_time, time_format_fault
from dedup.cli.run.input.inference import Inference
from dedup.cli.run.job import Job
from dedup.cli.run.options import COLUMNAR
from dedup.errors import ConfigError, DataError
from dedup.sinks.files.query import SourceFiles, read_rows
from dedup.sources.files.bypass import LeftToSpark
from dedup.sources.files.parquet_input import spark_columns
from dedup.sources.files.scan import TextSource
from dedup.sources.files.text_options import listing_options, text_format
from dedup.spark.driver import checks
from dedup.spark.plan import HELPER_PREFIX

#: Names of added columns, see `read_files`.
FILE, TIME = f"{HELPER_PREFIX}file", f"{HELPER_PREFIX}time"


def read_schema(spark: SparkSession, job: Job, inference: Inference) -> T.StructType:
    """Return the columns of the input, including columns that folders name."""
    options, files = job.options, job.files
    reader = spark.read.format(files.file_format).options(**read_settings(job))
    if options.schema is not None:
        try:
            reader = reader.schema(options.schema)
        except ParseException as error:
            reason = str(error).strip().split("\n")[0]
            raise ConfigError(
                f"--schema {options.schema!r} is not DDL such as 'id STRING, amount INT': {reason}"
            ) from None
    elif not files.paths:
        raise ConfigError(
            f"INPUT {options.input} holds no {files.file_format} files to read the columns from; "
            "add files, or give --schema."
        )
    elif files.file_format not in COLUMNAR:
        reader = reader.schema(inference.first_columns())
    try:
        schema = spark_columns(reader, files.place, files.paths, files.root)
    except Exception as error:
        raise _unreadable(error, job) from None
    for field in schema.fields:
        # Spark infers no type if the oldest file is in a folder k=__HIVE_DEFAULT_PARTITION__.
        if field.dataType.typeName() == "void":
            field.dataType = T.StringType()
    return schema


def _unreadable(error: Exception, job: Job) -> DataError:
    reason = explain(error).message.rstrip(".")
    if job.files.file_format in COLUMNAR:
        paths = [path for path in job.files.paths if path.stat().st_size]
        reason = first_fault(paths, job.files.file_format) or reason
    return DataError(
        f"The columns of INPUT {job.options.input} cannot be read: {reason}. Write the file again "
        "under its name, or give --schema without such a column.",
        remedy="bad-records",
    )


def plan_stream(
    spark: SparkSession, job: Job, schema: T.StructType, source: SourceFiles
) -> DataFrame:
    """Return a stream of the files' rows, the oldest file first. It ends with the known files.

    `source` is what `listed_files` returns. Spark reads the files only if they are ORC, or Parquet
    that tasks cannot read.
    """
    if job.files.file_format not in COLUMNAR:
        return read_rows(spark.readStream, schema, source)
    reader = spark.readStream.format(job.files.file_format).options(**read_settings(job))
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
    options, files = job.options, job.files
    by_spark, text = None, None
    if files.file_format not in COLUMNAR:
        read_options, zone = dict(options.read_options), checks.time_zone(spark)
        text = TextSource(
            root=files.root,
            format=text_format(schema, files.file_format, read_options, zone, files.partitions),
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
        options=read_settings(job),
        folders=files.partitions,
        paths=files.paths if files.file_format == "parquet" else (),
        by_spark=by_spark,
        text=text,
        time=event_time(options, schema, checks.time_zone(spark)),
    )


def read_settings(job: Job) -> dict[str, str]:
    """Return the options of Spark's reader. Spark only lists files of text."""
    read_options = dict(job.options.read_options)
    if job.files.file_format not in COLUMNAR:
        read_options = listing_options(read_options)
    of_stream = {"maxFilesPerTrigger": str(job.files_per_trigger)}
    return job.files.reader_options | read_options | of_stream

"""Reading a sample for `dedup tune`: the files that `dedup run` would take, in their order."""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dedup.causes import spark_cause
from dedup.cli.run.input.event_time import timestamp_column
from dedup.cli.run.input.input_files import file_order
from dedup.cli.run.input.source import read_settings
from dedup.cli.run.job import Job, resolve, schema_of
from dedup.cli.run.run_options import RunOptions
from dedup.cli.session import spark_session
from dedup.errors import ConfigError
from dedup.spark.driver.columns import named_column
from dedup.tune.read_sample import read_sample as sample_of
from dedup.tune.sample import Sample

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read_sample(
    *, input: str, id: tuple[str, ...], timestamp: str | None, spark: SparkSession | None = None,  # noqa: A002
    **options: Any,
) -> Sample:  # fmt: skip
    """Return the records with an ID of a folder of files, or of one file.

    Parameters
    ----------
    input, id, timestamp
        As of `dedup run`.
    spark : SparkSession, optional
        Session to read in. Default: one of its own.
    **options
        Others of `RunOptions` that say how files are read.

    Raises
    ------
    ConfigError
        When files or columns cannot be what was asked for.
    DataError
        When a file cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="dedup-tune-") as scratch:
        # Nothing is written there.
        run = RunOptions.make(
            input=input, id=id, timestamp=timestamp, horizon="1 day",
            output=Path(scratch, "output"), **options,
        )  # fmt: skip
        job = resolve(run)
        if not job.files.paths:
            raise ConfigError(f"--sample {run.input} holds no {job.files.file_format} files.")
        if spark is not None:
            return _read(spark, job, input)
        with spark_session(
            master=run.master,
            driver_memory=run.driver_memory,
            shards=run.cores,
            log=Path(scratch, "spark.log"),
        ) as session:
            return _read(session, job, input)


def _read(spark: SparkSession, job: Job, where: str) -> Sample:
    run, schema = job.options, schema_of(spark, job)
    reader = spark.read.format(job.files.file_format).schema(schema)
    reader = reader.options(**read_settings(run, job.files))
    frame = reader.load(str(job.files.root))
    with _times_read(run):
        return sample_of(
            frame,
            [named_column(name) for name in run.id],
            timestamp_column(run, schema),
            where=where,
            order=file_order(run),
        )


@contextmanager
def _times_read(run: RunOptions) -> Iterator[None]:
    """Name the option where a text is no time; PySpark would log the whole stack besides."""
    from pyspark.errors import ArithmeticException, DateTimeException, NumberFormatException
    from pyspark.logger import PySparkLogger

    logger = PySparkLogger.getLogger("DataFrameQueryContextLogger")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    except (ArithmeticException, DateTimeException, NumberFormatException) as error:
        # What follows advises another function.
        cause = re.split(r" (?:Correct the value|Use `)", spark_cause(str(error)))[0]
        how = (
            "" if run.timestamp_format is None else f" by --timestamp-format {run.timestamp_format}"
        )
        raise ConfigError(
            f"--timestamp {run.timestamp} cannot be read as a time{how}: {cause} Name the column "
            "of the event time, or give its --timestamp-format."
        ) from None
    finally:
        logger.setLevel(level)

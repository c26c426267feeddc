"""Reading a sample for `dedup tune`: the files that `dedup run` would take, in their order."""

from __future__ import annotations

import logging
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

import numpy as np

from dedup.causes import spark_cause
from dedup.cli.run.input.event_time import timestamp_column
from dedup.cli.run.input.source import named_column
from dedup.cli.run.job import Job, resolve, schema_of
from dedup.cli.run.options import RunOptions
from dedup.cli.session import spark_session
from dedup.errors import ConfigError
from dedup.tune.sample import Sample, without_future

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: More records than this are thinned out by ID, so that all copies of those that stay are there.
MAX_RECORDS = 2_000_000


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
            return _read(spark, job)
        with spark_session(
            master=run.master,
            driver_memory=run.driver_memory,
            shards=run.cores,
            log=Path(scratch, "spark.log"),
        ) as session:
            return _read(session, job)


def _read(spark: SparkSession, job: Job) -> Sample:
    from pyspark.sql import functions as fn

    from dedup.spark.driver.columns import Columns, check_id_type, check_time_type
    from dedup.spark.executor.pack import millis
    from dedup.spark.id_encoding import encode_ids

    run, schema = job.options, schema_of(spark, job)
    reader = spark.read.format(job.files.file_format).schema(schema)
    reader = reader.options(**job.files.reader_options, **dict(run.read_options))
    frame = reader.load(str(job.files.root))
    known = Columns(frame, case_sensitive=False)
    ids = [known.resolve(named_column(name), "--id") for name in run.id]
    for resolved in ids:
        check_id_type(resolved)
    wanted = [named_column(name).alias(f"id{i}") for i, name in enumerate(run.id)]
    timestamp = timestamp_column(run, schema)
    if timestamp is not None:
        check_time_type(known.resolve(timestamp, "--timestamp"))
        wanted.append(timestamp.alias("time"))
    picked = frame.select(*wanted, fn.col("_metadata.file_path").alias("file"))
    names = [f"id{i}" for i in range(len(run.id))]
    picked = picked.where(~_all_null(names))
    if timestamp is not None:
        picked = picked.where(fn.col("time").isNotNull())
    with _times_read(run):
        picked, one_in = _thinned(picked, names)
        table = picked.toArrow().combine_chunks()
    files = _file_numbers(table.column("file"), job.files.paths)
    order = np.argsort(files, kind="stable")
    keys = encode_ids([_one(table.column(name)) for name in names]).keys.take(order)
    times_ms = None
    if timestamp is not None:
        told_ms = millis(_one(table.column("time")))[order]
        times_ms = without_future(told_ms, files[order], time.time_ns() // 1_000_000)
    return Sample(keys=keys, times_ms=times_ms, files=files[order], one_in=one_in)


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


def _thinned(frame: DataFrame, names: list[str]) -> tuple[DataFrame, int]:
    from pyspark.sql import functions as fn

    count = frame.count()
    one_in = -(-count // MAX_RECORDS) or 1
    if one_in == 1:
        return frame, 1
    return frame.where(fn.pmod(fn.xxhash64(*names), fn.lit(one_in)) == 0), one_in


def _all_null(names: list[str]) -> Any:
    from functools import reduce

    from pyspark.sql import functions as fn

    return reduce(lambda a, b: a & b, (fn.col(name).isNull() for name in names))


def _one(column: pa.ChunkedArray) -> pa.Array:
    import pyarrow as pa

    chunks = column.chunks
    return (
        chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks or [pa.array([], column.type)])
    )


def _file_numbers(column: pa.ChunkedArray, paths: tuple[Path, ...]) -> np.ndarray:
    """The place of each record's file among the files, the oldest first."""
    coded = _one(column).dictionary_encode()
    place = {str(path): number for number, path in enumerate(paths)}
    names = [unquote(urlparse(uri).path) for uri in coded.dictionary.to_pylist()]
    # A file that came since the listing is the newest.
    numbers = np.array([place.get(name, len(paths)) for name in names], np.int64)
    return numbers[coded.indices.to_numpy(zero_copy_only=False)] if len(numbers) else numbers

"""Reading a sample for `dedup tune`: the files that `dedup run` would take, in their order."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dedup.cli.run.input.bad_rows import explained, good_rows
from dedup.cli.run.input.column_check import ColumnCheck
from dedup.cli.run.input.event_time import timestamp_column
from dedup.cli.run.input.input_files import InputFiles, file_order
from dedup.cli.run.input.source import InputColumns, read_files
from dedup.cli.run.job import Job, resolve, schema_of
from dedup.cli.run.run_options import COLUMNAR, RunOptions
from dedup.cli.session import spark_session
from dedup.errors import ConfigError, DataError
from dedup.sources.files.parquet_input import copies_for_spark
from dedup.spark.driver.columns import named_column
from dedup.tools.tuning.read_sample import read_sample as sample_of
from dedup.tools.tuning.sample import Sample

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
        files, twin = job.files, Path(scratch, "input")
        if files.file_format == "parquet" and run.schema is None:
            names = {name.lower() for name in (*id, timestamp or "")}
            if copies_for_spark(files.paths, files.root, twin, names):
                files = resolve(replace(run, input=twin)).files
        if spark is not None:
            return _read(spark, job, files, input)
        with spark_session(
            master=run.master,
            driver_memory=run.driver_memory,
            shards=run.cores,
            log=Path(scratch, "spark.log"),
        ) as session:
            return _read(session, job, files, input)


def _read(spark: SparkSession, job: Job, files: InputFiles, where: str) -> Sample:
    run, schema = job.options, schema_of(spark, job)
    columns = InputColumns(schema, schema)
    ColumnCheck(spark, job, columns).check_text(job.files.paths)
    frame = read_files(spark, run, files, columns, [files.place])
    if files.file_format not in COLUMNAR:
        frame = good_rows(frame, run, columns)
    try:
        return sample_of(
            frame,
            [named_column(name) for name in run.id],
            timestamp_column(run, schema),
            where=where,
            order=file_order(run),
        )
    except Exception as error:
        way = "mend it, or take its file out of the sample"
        told = explained(error, run, files, files.stamps, way=way)
        if isinstance(told, DataError):  # the user knows the file, not its copy
            text = told.text.replace(str(files.root), str(job.files.root))
            told = DataError(text, remedy=told.remedy)
        raise told from None

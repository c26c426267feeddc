"""Compare the rows that Spark returned of a micro-batch's files with the files."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from dedup.catalog.uri import literal
from dedup.cli.run.input.bad_rows import ALL, METRIC, files_of_batch
from dedup.cli.run.input.column_check import ColumnCheck
from dedup.cli.run.input.json_input import FILE
from dedup.cli.run.input.source import InputColumns, read_files
from dedup.cli.run.job import Job
from dedup.cli.run.observed import observed_so_far
from dedup.errors import DataError
from dedup.sinks.batch_folders import published_batches
from dedup.sources.files.orc_times import check_orc_times
from dedup.spark.driver.file_log import FileLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_rows(
    spark: SparkSession,
    job: Job,
    columns: InputColumns,
    check: ColumnCheck,
    log: FileLog,
    batch_id: int,
) -> None:
    """Refuse a micro-batch, before it is published, if Spark lost rows or changed times of it.

    Raises
    ------
    DataError
        For the first file whose rows are not as many as its records, or whose times Spark changes.
    """
    from pyspark.sql import functions as fn

    file_format = job.files.file_format
    if file_format not in ("csv", "orc") or batch_id in published_batches(job.options.output):
        return
    paths = files_of_batch(job.options, log, batch_id)
    if file_format == "orc":
        check_orc_times(spark, paths, columns.read)
        return
    records = {str(path): check.records_of(path) for path in paths}
    total, returned = sum(records.values()), None
    with suppress(Exception):
        # If the number is not known, the files are read once more.
        returned = observed_so_far(spark, job.options.checkpoint, METRIC).get(ALL)
    if returned == total:
        return
    rows = read_files(spark, job.options, job.files, columns, [literal(path) for path in records])
    # Spark's reader might return other rows if not all columns were read.
    whole = fn.max(fn.hash("*"))
    by_file = rows.groupBy(FILE).agg(fn.count(fn.lit(1)), whole).collect()
    rows_of = {path: count for path, count, _ in by_file}
    for path, expected in records.items():
        if rows_of.get(path, 0) != expected:
            raise DataError(
                f"{path} has {expected:,} records, and Spark returned {rows_of.get(path, 0):,} "
                "rows of it. Nothing of its micro-batch was published. Write the file again under "
                "its name, with each value in quotes that has a quote, a blank, a separator or a "
                "line end, and run again.",
                remedy="bad-records",
            )
    if returned is not None:
        raise DataError(
            f"The files of micro-batch {batch_id} have {total:,} records, and Spark returned "
            f"{returned:,} rows of them. Nothing of it was published. If a file was written while "
            "it was read, run again.",
            remedy="bad-records",
        )

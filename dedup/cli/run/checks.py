"""Checks before a micro-batch is published: no row lost or changed, and few late records."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from dedup.cli.run.input.bad_rows import ALL, METRIC, files_of_batch
from dedup.cli.run.input.column_check import ColumnCheck
from dedup.cli.run.input.json_files import FILE
from dedup.cli.run.input.source import InputColumns, read_files
from dedup.cli.run.job import Job
from dedup.cli.run.options import RunOptions
from dedup.cli.run.record import observed_so_far
from dedup.errors import DataError
from dedup.sinks.batch_folders import published_batches
from dedup.sources.files.file_log import FileLog
from dedup.sources.files.orc_times import check_orc_times

_ORDERS = {"time": "modification times", "name": "names"}


def check_rows(
    spark: SparkSession,
    job: Job,
    columns: InputColumns,
    check: ColumnCheck,
    log: FileLog,
    batch_id: int,
) -> None:
    """Raise DataError if Spark lost rows of a micro-batch's CSV files, or changes times of ORC."""
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
        # Read the files again if the number is unknown.
        returned = observed_so_far(spark, job.options.checkpoint, METRIC).get(ALL)
    if returned == total:
        return
    rows = read_files(spark, job, columns, records)
    # Use all columns, because Spark's reader may return other rows for some of them.
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
            "Spark read it, run again.",
            remedy="bad-records",
        )


@dataclass(slots=True)
class LateShare:
    """Compares the late records of a run with ``--max-late``."""

    spark: SparkSession
    options: RunOptions
    counts: dict[int, tuple[int, int]] = field(default_factory=dict)

    def check(self, batch_id: int) -> None:
        """Raise DataError before a micro-batch is published that makes the share too large."""
        if batch_id in published_batches(self.options.output):
            return
        observed = observed_so_far(self.spark, self.options.checkpoint, "dedup")
        self.counts[batch_id] = observed.get("late", 0), observed.get("records_in", 0)
        late, records = map(sum, zip(*self.counts.values(), strict=True))
        if (reason := self.of(late, records)) is not None:
            raise DataError(
                f"{reason} Nothing of micro-batch {batch_id} is published, since --late drop would "
                "lose these records. Give --late emit to keep them, or --max-late "
                f"{-(-100 * late // records)} or more to lose them, and run again.",
                remedy="late",
            )

    def of(self, late: int, records: int) -> str | None:
        """Return why too many records are late and what to do, or None if they are not."""
        options = self.options
        if 100 * late <= options.max_late * records:
            return None
        other = " --order-files name," if options.order_files == "time" else ""
        return (
            f"{late / records:.1%} of this run's records are late ({late:,} of {records:,}): "
            f"their {options.timestamp} is further behind the newest one before them than "
            f"--lateness allows. The files were read in the order of their "
            f"{_ORDERS[options.order_files]}. If that is not the order of {options.timestamp}, "
            f"run into a new --output with{other} --source-partition for each producer, or a "
            "longer --lateness."
        )

"""`--bad-records`: what happens to *bad rows*, which are rows that cannot be read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from dedup.cli.failures import explain
from dedup.cli.run.input.as_read import some_of
from dedup.cli.run.job import Job
from dedup.cli.run.options import RunOptions, flag
from dedup.cli.run.record import observed_so_far
from dedup.errors import DataError, DedupError, StateError
from dedup.errors.cause import own_error, unreadable_file
from dedup.sinks.files.query import splits
from dedup.sources.files.exact_values import unreadable
from dedup.sources.files.file_log import FileLog
from dedup.sources.files.scan import Scan
from dedup.spark.driver.shipping import shipped
from dedup.spark.observations import pack_name
from dedup.storage.uri import literal

#: Name of the figure of bad records in the observation of the first pass.
BAD = "bad_records"
#: Matches an error of `Scan` about a single record.
_OF_RECORD = re.compile(r"(?s).* cannot be read: .* It is line [\d,]+: .*")
#: Matches the option that the operator's error about a null names.
_NULL_OPTION = re.compile(r"\b(null_\w+)=")
_TIME_ERROR = re.compile(r"\[(CANNOT_PARSE_TIMESTAMP|CAST_INVALID_INPUT|INVALID_TIMESTAMP)")
_WAY = "fix it, or give --bad-records skip, or --bad-records DIR to set such records aside"


def bad_rows(
    spark: SparkSession, job: Job, scan: Scan, log: FileLog, batch_id: int
) -> DataFrame | None:
    """Return the bad records of a micro-batch, or None without bad records.

    A row holds the file, the line, the reason, and the text of the record. The files are read
    again, because only good rows pass the operator. Raises StateError if Spark's logs do not show
    the files.
    """
    with suppress(Exception):
        # If the number of bad records is unknown, read the files.
        if observed_so_far(spark, job.options.checkpoint, pack_name("dedup"))[BAD] == 0:
            return None
    places = [literal(str(path)) for path in files_of_batch(job.options, log, batch_id)]
    load = shipped(scan)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return load().bad_records(batches)

    listed = splits(spark.read, places, {}, text=scan.text)
    return listed.mapInArrow(read, "file string, line bigint, reason string, record string")


def files_of_batch(options: RunOptions, log: FileLog, batch_id: int) -> list[Path]:
    """Return the files of a micro-batch. Raises StateError if Spark's logs do not show them."""
    try:
        return log.of_batch(batch_id)
    except ValueError:
        raise StateError(
            f"Spark's logs in {options.checkpoint} do not show which files micro-batch {batch_id} "
            "has. Nothing of it is published. Restore the checkpoint.",
            remedy="damaged-state",
        ) from None


def explained(error: Exception, job: Job, paths: Sequence[object], *, way: str = _WAY) -> Exception:
    """Return an error that says what to do if the input caused `error`, else `error` itself."""
    timestamp = job.options.timestamp
    if isinstance(error, DedupError):
        return error
    text = str(error)
    ours = own_error(text)
    if ours is not None and ours.topic == "bad-records":
        return DataError(_of_record(ours.message, way), remedy="bad-records")
    file = unreadable_file(text)
    if "nanos > 999999999" in text:  # Spark does not always name the file in this error
        return DataError(
            f"A time before 1970 in {some_of(paths if file is None else file[:1])} has a fraction "
            "of a second as ORC's C++ library stores it, and Spark does not read that. Nothing of "
            "its micro-batch was taken. Let Spark or Hive write the file again under its name, or "
            "write the column as text, and run again.",
            remedy="bad-records",
        )
    if file is not None:
        path, reason = file
        return unreadable(path, reason.rstrip("."))
    if timestamp is not None and _TIME_ERROR.search(text):
        cause = re.split(r" (?:Correct the value|Use `)", explain(error).message)[0]
        return DataError(
            f"--timestamp {timestamp} cannot be read as a time: {cause.rstrip('.')}. If "
            "all records have another format, give --timestamp-format (and a new --output, if this "
            f"one has rows). If one record is wrong, {way}, and run again.",
            remedy="bad-records",
        )
    return error


def _of_record(message: str, way: str) -> str:
    if _OF_RECORD.fullmatch(message):
        return f"{message} {way[0].upper()}{way[1:]}, and run again."
    rejecting = _NULL_OPTION.search(message)
    return f"{message} Here the option is {flag(rejecting[1])}." if rejecting else message

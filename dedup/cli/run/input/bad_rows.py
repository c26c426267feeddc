"""`--bad-records`: what happens to *bad rows*, which are rows that cannot be read."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from dedup.cli.failures import explain
from dedup.cli.run.input.as_read import some_of
from dedup.cli.run.input.csv_values import BETWEEN, KEY
from dedup.cli.run.input.event_time import is_no_time
from dedup.cli.run.input.files import folded, is_true, line_of, separator
from dedup.cli.run.input.json_files import FILE, TEXT
from dedup.cli.run.input.source import InputColumns, read_files, read_settings
from dedup.cli.run.job import Job
from dedup.cli.run.options import RunOptions, flag
from dedup.cli.run.record import observed_so_far
from dedup.errors import DataError, DedupError, StateError
from dedup.errors.cause import own_error, unreadable_file
from dedup.sources.files.exact_values import unreadable
from dedup.sources.files.file_log import FileLog
from dedup.sources.strict_json import CAUSE, is_good
from dedup.spark.driver.columns import named_column

#: Name of the metric with which Spark counts bad rows and all rows, and names of the two counts.
METRIC, BAD, ALL = "dedup_bad", "rows", "all"
#: Matches an error of `good_rows`, which names the file of a record and the hash of its text.
_NAMED_RECORD = re.compile(r"(.*?)( cannot be read: .*) \[([0-9a-f]{32})\]")
#: Matches the option that the operator's error about a null names.
_NULL_OPTION = re.compile(r"\b(null_\w+)=")
_TIME_ERROR = re.compile(r"\[(CANNOT_PARSE_TIMESTAMP|CAST_INVALID_INPUT|INVALID_TIMESTAMP)")
_WAY = "fix it, or give --bad-records skip, or --bad-records DIR to set such records aside"


def good_rows(rows: DataFrame, job: Job, columns: InputColumns) -> DataFrame:
    """Return the rows that can be read, with the columns of the output.

    Spark counts all other rows. With ``--bad-records error``, the first such row stops the query.
    """
    bad = _is_bad(job, columns)
    # The observation also stops Spark from pushing the filter down and parsing the text twice.
    counts = fn.count(fn.when(bad, 1)).alias(BAD), fn.count(fn.lit(1)).alias(ALL)
    counted = rows.observe(METRIC, *counts)
    good = ~bad
    if job.options.bad_records == "error":
        digest = fn.md5(KEY if KEY in rows.columns else TEXT)
        text = fn.format_string("%s cannot be read: %s [%s]", FILE, CAUSE, digest)
        good = is_good("bad-records", text)
    return counted.where(good).select(list(map(named_column, columns.schema.names)))


def _is_bad(job: Job, columns: InputColumns) -> Column:
    broken, timeless = fn.col(CAUSE).isNotNull(), is_no_time(job.options, columns.schema)
    return broken if timeless is None else broken | timeless


def bad_rows(
    spark: SparkSession, job: Job, columns: InputColumns, log: FileLog, batch_id: int
) -> DataFrame | None:
    """Return the bad rows of a micro-batch, or None if there are none.

    A row holds the file, the reason, and the text of the record. The files are read again, because
    only good rows pass the operator. Raises StateError if Spark's logs do not show the files.
    """
    options = job.options
    with suppress(Exception):
        # If the number of bad rows is unknown, read the files to find out.
        if observed_so_far(spark, options.checkpoint, METRIC)[BAD] == 0:
            return None
    rows = read_files(spark, job, columns, files_of_batch(options, log, batch_id))
    no_time = fn.lit(f"{options.timestamp} is not a time.")
    described = rows.where(_is_bad(job, columns)).select(
        fn.col(FILE).alias("file"),
        fn.coalesce(fn.col(CAUSE), no_time).alias("reason"),
        fn.col(TEXT).alias("record"),
    )
    # If a file is one JSON array, every row holds the text of the whole file.
    settings = folded(dict(options.read_options))
    is_whole_file = job.files.file_format == "json" and is_true(settings, "multiline")
    return described.dropDuplicates() if is_whole_file else described


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
        return DataError(_of_record(ours.message, job, way), remedy="bad-records")
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
        if "CSV header" not in reason:
            return unreadable(path, reason.rstrip("."))
        fault = re.sub(r";? *CSV file: \S+", "", f"{path} cannot be read: {reason.rstrip('.')}.")
        return DataError(
            f"{fault} The first line of every CSV file must name the columns of the first, in "
            "their order. Fix the file under its name, and run again.",
            remedy="bad-records",
        )
    if timestamp is not None and _TIME_ERROR.search(text):
        cause = re.split(r" (?:Correct the value|Use `)", explain(error).message)[0]
        return DataError(
            f"--timestamp {timestamp} cannot be read as a time: {cause.rstrip('.')}. If "
            "all records have another format, give --timestamp-format (and a new --output, if this "
            f"one has rows). If one record is wrong, {way}, and run again.",
            remedy="bad-records",
        )
    return error


def _of_record(message: str, job: Job, way: str) -> str:
    """Add the number of the line, or the flag to give, to an error about a record."""
    record = _NAMED_RECORD.fullmatch(message)
    if record is not None:
        settings = folded(read_settings(job))
        key = partial(_csv_key, settings) if job.files.file_format == "csv" else bytes
        line = line_of(Path(record[1]), record[3], key)
        return f"{record[1]}{record[2]}{line} {way[0].upper()}{way[1:]}, and run again."
    rejecting = _NULL_OPTION.search(message)
    return f"{message} Here the option is {flag(rejecting[1])}." if rejecting else message


def _csv_key(settings: Mapping[str, str], line: bytes) -> bytes:
    text = line.decode(settings.get("encoding", settings.get("charset", "utf-8")), "replace")
    with suppress(csv.Error, TypeError, StopIteration):
        mark = settings.get("quote", '"') or None
        values = next(csv.reader([text], delimiter=separator(settings), quotechar=mark))
        return BETWEEN.join(values).encode()
    return line

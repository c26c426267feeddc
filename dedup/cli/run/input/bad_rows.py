"""`--bad-records`: rows that cannot be read stop the run, are left out, or are set aside."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from dedup.catalog.uri import literal
from dedup.cli.failures import explain
from dedup.cli.run.input.csv_values import BETWEEN, KEY
from dedup.cli.run.input.event_time import is_no_time
from dedup.cli.run.input.file_columns import line_of
from dedup.cli.run.input.input_files import InputFiles, folded, is_true, separator
from dedup.cli.run.input.json_input import FILE, TEXT
from dedup.cli.run.input.source import InputColumns, read_files, read_settings
from dedup.cli.run.observed import observed_so_far
from dedup.cli.run.run_options import RunOptions
from dedup.errors import DataError, DedupError, StateError
from dedup.errors.cause import LINK, own_error, unreadable_file
from dedup.sources.files.exact_values import WRITE_AGAIN, unreadable
from dedup.sources.files.orc_times import columns_before_1970
from dedup.spark.driver.columns import named_column
from dedup.spark.driver.file_log import FileLog
from dedup.spark.driver.strict_json import CAUSE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Names under which the numbers of bad rows and of all rows are observed.
METRIC, BAD, ALL = "dedup_bad", "rows", "all"
#: How an error of `good_rows` names a record: its file, and the hash of its text.
_NAMED_RECORD = re.compile(r"(.*?)( cannot be read: .*) \[([0-9a-f]{32})\]")
#: What options of the operator are called here.
_NULL_FLAGS = {"null_ids": "--null-ids", "null_timestamps": "--null-timestamps"}
_WAY = "mend it, or give --bad-records skip, or --bad-records DIR to set such records aside"


def good_rows(rows: DataFrame, options: RunOptions, columns: InputColumns) -> DataFrame:
    """Return the rows that can be read, with the columns that go on.

    Others are counted, or the first of them stops the query, as --bad-records says.
    """
    from pyspark.sql import functions as fn

    bad = _is_bad(options, columns)
    # Besides, Spark would judge the text once more if it could move the filter below.
    counts = fn.count(fn.when(bad, 1)).alias(BAD), fn.count(fn.lit(1)).alias(ALL)
    counted = rows.observe(METRIC, *counts)
    fine = ~bad
    if options.bad_records == "error":
        fine = fn.when(fn.col(CAUSE).isNull(), True).otherwise(_raised(rows).cast("boolean"))
    return counted.where(fine).select([named_column(name) for name in columns.schema.names])


def _raised(rows: DataFrame) -> Column:
    """Stop the query at a row, as a task in Python would raise it."""
    from pyspark.sql import functions as fn

    text = fn.concat(
        fn.lit(f"\ndedup.errors.{DataError.__name__}: "),
        fn.col(FILE),
        fn.lit(" cannot be read: "),
        fn.col(CAUSE),
        fn.lit(" ["),
        fn.md5(KEY if KEY in rows.columns else TEXT),
        fn.lit(f"]\n{LINK}bad-records"),
    )
    return fn.raise_error(text)


def _is_bad(options: RunOptions, columns: InputColumns) -> Column:
    from pyspark.sql import functions as fn

    broken, timeless = fn.col(CAUSE).isNotNull(), is_no_time(options, columns.schema)
    return broken if timeless is None else broken | timeless


class BadRows:
    """The bad rows of a micro-batch, read once more: only what is good goes through the operator.

    Parameters
    ----------
    spark : SparkSession
    options : RunOptions
    files : InputFiles
    columns : InputColumns
    log : FileLog
        Tells the files of a micro-batch.
    """

    def __init__(
        self,
        spark: SparkSession,
        options: RunOptions,
        files: InputFiles,
        columns: InputColumns,
        log: FileLog,
    ) -> None:
        self._spark = spark
        self._options = options
        self._files = files
        self._columns = columns
        self._log = log

    def __call__(self, batch_id: int) -> DataFrame | None:
        """Return file, reason and text of each bad row, None where there are none.

        Raises
        ------
        StateError
            If Spark's logs do not tell the files of the micro-batch.
        """
        from pyspark.sql import functions as fn

        with suppress(Exception):
            # If the number is not known, the files are read once more.
            if observed_so_far(self._spark, self._options.checkpoint, METRIC)[BAD] == 0:
                return None
        paths = files_of_batch(self._options, self._log, batch_id)
        found = [literal(str(path)) for path in paths]
        rows = read_files(self._spark, self._options, self._files, self._columns, found)
        no_time = fn.lit(f"{self._options.timestamp} is no time.")
        described = rows.where(_is_bad(self._options, self._columns)).select(
            fn.col(FILE).alias("file"),
            fn.coalesce(fn.col(CAUSE), no_time).alias("reason"),
            fn.col(TEXT).alias("record"),
        )
        # Each row of an array has the text of the whole file.
        is_whole_file = self._files.file_format == "json" and is_true(
            folded(dict(self._options.read_options)), "multiline"
        )
        return described.dropDuplicates() if is_whole_file else described


def files_of_batch(options: RunOptions, log: FileLog, batch_id: int) -> list[Path]:
    """Return the files of a micro-batch.

    Raises
    ------
    StateError
        If Spark's logs do not tell them.
    """
    try:
        return log.of_batch(batch_id)
    except ValueError:
        raise StateError(
            f"Spark's logs in {options.checkpoint} do not tell which files micro-batch {batch_id} "
            "has. Nothing of it is published. Restore the checkpoint.",
            remedy="damaged-state",
        ) from None


def explained(
    error: Exception,
    options: RunOptions,
    files: InputFiles,
    paths: Iterable[str],
    *,
    way: str = _WAY,
) -> Exception:
    """Return the error of a query over these files, with the way out if it is the input's fault."""
    if isinstance(error, DedupError):
        return error
    text = str(error)
    ours = own_error(text)
    if ours is not None and ours.topic == "bad-records":
        record = _NAMED_RECORD.fullmatch(ours.message)
        if record is not None:
            settings = folded(read_settings(options, files))
            key = partial(_csv_key, settings) if files.file_format == "csv" else bytes
            line = line_of(Path(record[1]), record[3], key)
            fault = f"{record[1]}{record[2]}{line} M{way[1:]}, and run again."
            return DataError(fault, remedy="bad-records")
        for option, flag in _NULL_FLAGS.items():
            if f"{option}=" in ours.message:
                return DataError(f"{ours.message} Here the option is {flag}.", remedy="bad-records")
        return DataError(ours.message, remedy="bad-records")
    if files.file_format == "orc" and "nanos > 999999999" in text:
        for path in paths:
            with suppress(OSError, pa.ArrowException):
                for column in columns_before_1970(path):
                    return DataError(
                        f"{path}: its column {column!r} has times before 1970 that Spark does not "
                        f"read. {WRITE_AGAIN}",
                        remedy="bad-records",
                    )
    file = unreadable_file(text)
    if file is not None:
        path, reason = file
        fault = f"{path} cannot be read: {reason.rstrip('.')}."
        if "CSV header" in reason:
            fault = re.sub(r";? *CSV file: \S+", "", fault)
            return DataError(
                f"{fault} The first line of every CSV file must name the columns of the first, in "
                "their order. Mend the file under its name, and run again.",
                remedy="bad-records",
            )
        return unreadable(path, reason.rstrip("."))
    is_time = re.search(r"\[(CANNOT_PARSE_TIMESTAMP|CAST_INVALID_INPUT|INVALID_TIMESTAMP)", text)
    if is_time and options.timestamp is not None:
        cause = re.split(r" (?:Correct the value|Use `)", explain(error).message)[0]
        return DataError(
            f"--timestamp {options.timestamp} cannot be read as a time: {cause.rstrip('.')}. Where "
            "all records have another format, give --timestamp-format (and a new --output, if this "
            f"one has rows). Where one record is wrong, {way}, and run again.",
            remedy="bad-records",
        )
    return error


def _csv_key(settings: Mapping[str, str], line: bytes) -> bytes:
    text = line.decode(settings.get("encoding", settings.get("charset", "utf-8")), "replace")
    with suppress(csv.Error, TypeError, StopIteration):
        mark = settings.get("quote", '"') or None
        values = next(csv.reader([text], delimiter=separator(settings), quotechar=mark))
        return BETWEEN.join(values).encode()
    return line

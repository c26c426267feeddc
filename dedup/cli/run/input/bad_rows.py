"""`--bad-records`: rows that cannot be read stop the run, are left out, or are set aside."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dedup.causes import own_error, unreadable_file
from dedup.cli.failures import explain
from dedup.cli.run.input.event_time import is_no_time
from dedup.cli.run.input.input_files import InputFiles, literal
from dedup.cli.run.input.source import (
    CORRUPT,
    InputColumns,
    columns_to_read,
    named_column,
    read_settings,
)
from dedup.cli.run.input.text_blocks import is_true
from dedup.cli.run.observed import observed_so_far
from dedup.cli.run.run_options import RunOptions
from dedup.errors import DataError, DedupError, StateError
from dedup.spark.driver.file_log import FileLog

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Name under which the number of bad rows is observed.
METRIC = "dedup_bad"
#: Where in the record a parser of JSON stood, which reads as if it were the line of the file.
_JACKSON = re.compile(r";? *\(?(?:start marker )?at \[Source: [^\]]*\]\)?")
#: A value that is no instance of its column's type.
_MISFIT = re.compile(
    r"Cannot parse the field name '(.*)' and the value (.*) of the JSON token type"
)
#: What options of the operator are called here.
_NULL_FLAGS = {"null_ids": "--null-ids", "null_timestamps": "--null-timestamps"}
_SEARCHED_BYTES = 64 << 20
_SHOWN_CHARS = 200


def good_rows(rows: DataFrame, options: RunOptions, columns: InputColumns) -> DataFrame:
    """Return the rows that can be read, with the columns that go on; the others are counted."""
    from pyspark.sql import functions as fn

    bad = _is_bad(options, columns)
    counted = rows.observe(METRIC, fn.count(fn.when(bad, 1)).alias("rows"))
    return counted.where(~bad).select([named_column(name) for name in columns.schema.names])


def _is_bad(options: RunOptions, columns: InputColumns) -> Column:
    broken, timeless = named_column(CORRUPT).isNotNull(), is_no_time(options, columns.schema)
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

        if self._counted() == 0:
            return None
        try:
            paths = self._log.of_batch(batch_id)
        except ValueError:
            raise StateError(
                f"Spark's logs in {self._options.checkpoint} do not tell which files micro-batch "
                f"{batch_id} has. Nothing of it is published. Restore the checkpoint.",
                remedy="damaged-state",
            ) from None
        reader = self._spark.read.format(self._files.file_format)
        reader = reader.schema(columns_to_read(self._options, self._columns)).options(
            **read_settings(self._options, self._files), basePath=str(self._files.root)
        )
        rows = reader.load([literal(str(path)) for path in paths])
        bad = rows.where(_is_bad(self._options, self._columns))
        own = [named_column(name) for name in self._columns.read.names]
        record = fn.to_json(fn.struct(*own))
        described = bad.select(
            _plain_path(fn.col("_metadata.file_path")).alias("file"),
            self._reason().alias("reason"),
            fn.coalesce(named_column(CORRUPT), record).alias("record"),
        )
        # Each row of an array has the text of the whole file.
        given = {name.lower(): value for name, value in self._options.read_options}
        is_whole_file = self._files.file_format == "json" and is_true(given, "multiline")
        return described.dropDuplicates() if is_whole_file else described

    def _counted(self) -> int | None:
        """Bad rows that the running micro-batch has met so far, None where Spark does not tell.

        Where they cannot be told, the files are read once more.
        """
        with suppress(Exception):
            return observed_so_far(self._spark, self._options.checkpoint, METRIC)["rows"]
        return None

    def _reason(self) -> Column:
        from pyspark.sql import functions as fn
        from pyspark.sql import types as T  # noqa: N812

        folders = self._files.folder_columns if self._files.partitioned else ()
        own = [f for f in self._columns.read.fields if f.name.lower() not in folders]
        text = named_column(CORRUPT)
        loose = T.StructType([T.StructField(f.name, T.StringType()) for f in own])
        loose = loose.add(CORRUPT, T.StringType())
        settings = read_settings(self._options, self._files)
        if self._files.file_format == "json":
            parsed = fn.from_json(text, loose, settings)
            broken = "It is not JSON."
        else:
            ddl = ", ".join(f"{_quoted(name)} STRING" for name in loose.names)
            parsed = fn.from_csv(text, ddl, {**settings, "header": "false"})
            broken = "It has more or fewer columns than the header."
        misfits = [
            fn.when(
                parsed.getField(f.name).isNotNull() & named_column(f.name).isNull(),
                fn.lit(f"{f.name} is no {f.dataType.simpleString()}."),
            )
            for f in own
        ]
        reasons = fn.concat_ws(" ", *misfits)
        timeless = is_no_time(self._options, self._columns.schema)
        why = f"{self._options.timestamp} is no time."
        no_time = fn.when(fn.lit(False) if timeless is None else timeless, why)
        return fn.coalesce(
            fn.when(text.isNull(), no_time),
            fn.when(parsed.getField(CORRUPT).isNotNull() | parsed.isNull(), fn.lit(broken)),
            fn.when(reasons != "", reasons),
            fn.lit("A value does not fit its column."),
        )


def explained(error: Exception, options: RunOptions, file_format: str) -> Exception:
    """Return the error of a query, with the way out where it is the input's fault."""
    if isinstance(error, DedupError):
        return error
    text = str(error)
    ours = own_error(text)
    if ours is not None and ours.topic == "bad-records":
        for option, flag in _NULL_FLAGS.items():
            if f"{option}=" in ours.message:
                return DataError(f"{ours.message} Here the option is {flag}.", remedy="bad-records")
        return DataError(ours.message, remedy="bad-records")
    file = unreadable_file(text)
    way = "mend it, or give --bad-records skip, or --bad-records DIR to set such records aside"
    if file is not None:
        path, reason = file
        fault = f"{path} cannot be read: {_JACKSON.sub('', reason).rstrip('.')}."
        if "MALFORMED" in text or _MISFIT.search(reason):
            place = _place(Path(path), file_format, reason)
            return DataError(f"{fault}{place} M{way[1:]}, and run again.", remedy="bad-records")
        if "CSV header" in reason:
            fault = re.sub(r";? *CSV file: \S+", "", fault)
            return DataError(
                f"{fault} The first line of every CSV file must name the columns of the first, in "
                "their order. Mend the file under its name, and run again.",
                remedy="bad-records",
            )
        return DataError(
            f"{fault} Mend the file under its name, or put an empty file in its place to leave it "
            "out, and run again.",
            remedy="bad-records",
        )
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


def _place(path: Path, file_format: str, reason: str) -> str:
    """The line of the record, where looking for it is cheap."""
    misfit = _MISFIT.search(reason)
    if file_format == "csv":
        is_it: Callable[[str], bool] = partial(
            str.__eq__, reason.partition("Malformed CSV record: ")[2]
        )
    elif misfit is not None:
        is_it = partial(_holds, misfit[1], misfit[2])
    else:
        is_it = _is_no_json
    try:
        with gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb") as handle:
            read = 0
            for number, line in enumerate(handle, start=1):
                read += len(line)
                if read > _SEARCHED_BYTES:
                    return ""
                text = line.decode("utf-8", errors="replace").strip()
                if is_it(text):
                    shown = "" if file_format == "csv" else f": {text[:_SHOWN_CHARS]}"
                    return f" It is line {number}{shown}."
    except (OSError, EOFError):
        pass
    return ""


def _holds(name: str, value: str, text: str) -> bool:
    """Whether a field of that name has that value, somewhere in a line of JSON."""
    if value not in text:
        return False
    found = False

    def look(pairs: list[tuple[str, object]]) -> None:
        nonlocal found
        for key, inner in pairs:
            plain = inner if isinstance(inner, str) else json.dumps(inner, default=str)
            found = found or (key == name and plain == value)

    with suppress(ValueError, RecursionError):
        json.loads(text, object_pairs_hook=look)
    return found


def _is_no_json(text: str) -> bool:
    try:
        json.loads(text or "null")
    except (ValueError, RecursionError):
        return True
    return False


def _plain_path(uri: Column) -> Column:
    from pyspark.sql import functions as fn

    path = fn.regexp_replace(fn.regexp_replace(uri, "^file:/+", "/"), r"\+", "%2B")
    return fn.url_decode(path)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"

"""Make the event time from the column of `--timestamp`: text, numbers, dates or timestamps."""

from __future__ import annotations

import re

from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql import types as T  # noqa: N812

from dedup.cli.failures import explain
from dedup.cli.run.options import RunOptions
from dedup.errors import ConfigError
from dedup.spark.driver.columns import named_column

#: Units that `--timestamp-format` accepts for numbers that count since 1970. A number that does not
#: fit into the type of its unit is too large for a timestamp.
_EPOCH_UNITS = {"seconds": "decimal(18,6)", "milliseconds": "decimal(15,0)"}
#: Matches usual names of columns that hold an event time as text or number.
_TIME_NAME = re.compile(
    r"(?:.*_)?(?:at|on|ts|t|time|timestamp|date|datetime|when|created|updated|occurred|received)"
    r"(?:_(?:at|on|ts|time|utc))?|.*[a-z](?:At|On|Time|Timestamp|Date)"
)


def timestamp_column(
    options: RunOptions, schema: T.StructType, *, or_null: bool = False
) -> Column | None:
    """Return the column with the event time, or None if ``--timestamp`` is not given.

    A time that cannot be read causes an error in Spark, or becomes null with `or_null`. Raises
    ConfigError if the column holds numbers and their unit is unknown.
    """
    if options.timestamp is None:
        return None
    column, pattern = named_column(options.timestamp), options.timestamp_format
    kinds = {field.name.lower(): field.dataType for field in schema.fields}
    kind = kinds[options.timestamp.lower()]
    if pattern in _EPOCH_UNITS:
        cast = column.try_cast if or_null else column.cast
        count = cast(_EPOCH_UNITS[pattern])
        if pattern == "seconds":
            return fn.timestamp_seconds(count)
        return fn.timestamp_millis(count.cast("bigint"))
    if isinstance(kind, T.NumericType):
        raise ConfigError(
            f"--timestamp {options.timestamp} is a column of numbers ({kind.simpleString()}). If "
            "they count from 1970 on, give --timestamp-format seconds or milliseconds."
        )
    if pattern is not None or isinstance(kind, T.StringType):
        text, formats = (_dated(column), []) if pattern is None else (column, [pattern])
        if or_null:
            return fn.try_to_timestamp(text, *map(fn.lit, formats))
        return fn.to_timestamp(text, *formats)
    return column.cast("timestamp") if isinstance(kind, T.DateType) else column


def is_no_time(options: RunOptions, schema: T.StructType) -> Column | None:
    """Return whether a row's event time cannot be read, or None without ``--timestamp``."""
    time = timestamp_column(options, schema, or_null=True)
    if options.timestamp is None or time is None:
        return None
    return named_column(options.timestamp).isNotNull() & time.isNull()


def _dated(text: Column) -> Column:
    """Replace text without a whole date by unreadable text. Spark would complete the date."""
    return fn.regexp_replace(text, r"^\s*(T?\d+:|[+-]?\d{4,7}(-\d\d?)?\s*$)", "no date: $0")


def check_time_format(spark: SparkSession, options: RunOptions) -> None:
    if options.timestamp_format is None or options.timestamp_format in _EPOCH_UNITS:
        return
    text, pattern = fn.lit("2024-05-01 00:00:00"), fn.lit(options.timestamp_format)
    try:
        spark.range(1).select(fn.try_to_timestamp(text, pattern)).collect()
    except PySparkException as error:
        raise ConfigError(
            f"--timestamp-format {options.timestamp_format} is not a pattern of Spark's: "
            f"{explain(error).message.rstrip('.')}."
        ) from None


def time_columns(schema: T.StructType, ids: tuple[str, ...]) -> list[str]:
    """Return the columns that may hold an event time: by type first, then by name."""
    keys = {name.lower() for name in ids}
    fields = [field for field in schema.fields if field.name.lower() not in keys]
    times = T.TimestampType, T.TimestampNTZType
    named = [
        field.name
        for field in fields
        if isinstance(field.dataType, (T.StringType, T.DateType, T.LongType))
        and (_TIME_NAME.fullmatch(field.name) or _TIME_NAME.fullmatch(field.name.lower()))
    ]
    return [field.name for field in fields if isinstance(field.dataType, times)] + named


def arrival_note(options: RunOptions, schema: T.StructType) -> str | None:
    if options.timestamp is not None:
        return None
    explanation = (
        "The horizon is measured by this run's own clock, because no --timestamp is given: all "
        "files of one run are de-duplicated as if they had arrived at once, even if their records "
        "are old, and a run after the horizon emits an ID again."
    )
    names = time_columns(schema, options.id)
    if not names:
        return explanation
    verb = "looks" if len(names) == 1 else "look"
    return (
        f"{explanation} {', '.join(map(repr, names[:3]))} {verb} like the time of an event: "
        f"--timestamp {names[0]} would measure by it."
    )

"""Make the event time from the column of `--timestamp`: text, numbers, dates or timestamps."""

from __future__ import annotations

import re

from pyspark.sql import Column
from pyspark.sql import functions as fn
from pyspark.sql import types as T  # noqa: N812

from dedup.cli.run.options import RunOptions
from dedup.errors import ConfigError
from dedup.sources.files.event_times import EPOCH_UNITS, EventTime
from dedup.sources.files.time_pattern import TimePattern
from dedup.spark.driver.columns import named_column

#: Units that `--timestamp-format` accepts for numbers that count since 1970. A number that does not
#: fit into the type of its unit is too large for a timestamp.
_EPOCH_UNITS = {"seconds": "decimal(18,6)", "milliseconds": "decimal(15,0)"}
#: Matches usual names of columns that hold an event time as text or number.
_TIME_NAME = re.compile(
    r"(?:.*_)?(?:at|on|ts|t|time|timestamp|date|datetime|when|created|updated|occurred|received)"
    r"(?:_(?:at|on|ts|time|utc))?|.*[a-z](?:At|On|Time|Timestamp|Date)"
)


def timestamp_column(options: RunOptions, schema: T.StructType) -> Column | None:
    """Return the column with the event time, or None if ``--timestamp`` is not given.

    Spark computes it only if it reads the files; otherwise `event_time` does. Raises ConfigError if
    the column holds numbers and their unit is unknown.
    """
    if options.timestamp is None:
        return None
    column, pattern = named_column(options.timestamp), options.timestamp_format
    kinds = {field.name.lower(): field.dataType for field in schema.fields}
    kind = kinds[options.timestamp.lower()]
    if pattern in _EPOCH_UNITS:
        count = column.cast(_EPOCH_UNITS[pattern])
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
        return fn.to_timestamp(text, *formats)
    return column.cast("timestamp") if isinstance(kind, T.DateType) else column


def event_time(options: RunOptions, schema: T.StructType, time_zone: str) -> EventTime | None:
    """Return how tasks make the event times, or None if the column has them or only Spark can."""
    if options.timestamp is None:
        return None
    (field,) = (f for f in schema.fields if f.name.lower() == options.timestamp.lower())
    if options.timestamp_format is None and isinstance(
        field.dataType, (T.TimestampType, T.TimestampNTZType)
    ):
        return None
    return EventTime(column=field.name, form=options.timestamp_format, time_zone=time_zone)


def _dated(text: Column) -> Column:
    """Replace text without a whole date by unreadable text. Spark would complete the date."""
    return fn.regexp_replace(text, r"^\s*(T?\d+:|[+-]?\d{4,7}(-\d\d?)?\s*$)", "no date: $0")


def time_format_fault(options: RunOptions) -> str | None:
    """Return why tasks cannot use ``--timestamp-format``, or None if they can."""
    if options.timestamp_format is not None and options.timestamp_format not in EPOCH_UNITS:
        try:
            TimePattern(options.timestamp_format)
        except ValueError as error:
            return str(error)
    return None


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

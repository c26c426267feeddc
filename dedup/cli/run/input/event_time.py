"""The column of `--timestamp` as a time: texts by a pattern, numbers by their unit, dates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dedup.cli.failures import explain
from dedup.cli.run.run_options import RunOptions
from dedup.errors import ConfigError
from dedup.spark.driver.columns import named_column

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import DataType, StructType

#: Values of `--timestamp-format` that count since 1970, and a type that holds no more than a
#: timestamp does.
EPOCH_UNITS = {"seconds": "decimal(18,6)", "milliseconds": "decimal(15,0)"}


def timestamp_column(options: RunOptions, schema: StructType) -> Column | None:
    """Return the event time that the options name, None where they name none.

    Raises
    ------
    ConfigError
        If the column is a number and the options do not say of what.
    """
    from pyspark.sql import functions as fn
    from pyspark.sql.types import DateType, NumericType, StringType

    if options.timestamp is None:
        return None
    column, kind = named_column(options.timestamp), kind_of(options, schema)
    if options.timestamp_format in EPOCH_UNITS:
        count = column.cast(EPOCH_UNITS[options.timestamp_format])
        if options.timestamp_format == "seconds":
            return fn.timestamp_seconds(count)
        return fn.timestamp_millis(count.cast("bigint"))
    if isinstance(kind, NumericType):
        raise ConfigError(
            f"--timestamp {options.timestamp} is a column of numbers ({kind.simpleString()}). If "
            "they count from 1970 on, give --timestamp-format seconds or milliseconds."
        )
    if options.timestamp_format is not None:
        return fn.to_timestamp(column, options.timestamp_format)
    if isinstance(kind, StringType):
        return fn.to_timestamp(_dated(column))
    return column.cast("timestamp") if isinstance(kind, DateType) else column


def is_no_time(options: RunOptions, schema: StructType) -> Column | None:
    """Return whether a row has an event time that cannot be read; None where all can."""
    from pyspark.sql import functions as fn
    from pyspark.sql.types import StringType

    if options.timestamp is None:
        return None
    column, pattern = named_column(options.timestamp), options.timestamp_format
    if pattern in EPOCH_UNITS:
        read = column.try_cast(EPOCH_UNITS[pattern])
    elif isinstance(kind_of(options, schema), StringType):
        dated = _dated(column) if pattern is None else column
        read = fn.try_to_timestamp(dated, None if pattern is None else fn.lit(pattern))
    else:
        return None
    return column.isNotNull() & read.isNull()


def _dated(text: Column) -> Column:
    """Return a text that is no time if it has no whole date, which Spark would complete."""
    from pyspark.sql import functions as fn

    return fn.regexp_replace(text, r"^\s*(T?\d+:|[+-]?\d{4,7}(-\d\d?)?\s*$)", "no date: $0")


def check_time_format(spark: SparkSession, options: RunOptions) -> None:
    """Refuse a pattern that Spark does not know.

    Raises
    ------
    ConfigError
        With what Spark says of it.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as fn

    if options.timestamp_format is None or options.timestamp_format in EPOCH_UNITS:
        return
    text, pattern = fn.lit("2024-05-01 00:00:00"), fn.lit(options.timestamp_format)
    try:
        spark.range(1).select(fn.try_to_timestamp(text, pattern)).collect()
    except PySparkException as error:
        raise ConfigError(
            f"--timestamp-format {options.timestamp_format} is no pattern of Spark's: "
            f"{explain(error).message.rstrip('.')}."
        ) from None


def kind_of(options: RunOptions, schema: StructType) -> DataType:
    """Return the type of the column that `--timestamp` names."""
    assert options.timestamp is not None
    kinds = {field.name.lower(): field.dataType for field in schema.fields}
    return kinds[options.timestamp.lower()]

"""Reads the IDs that Spark's own `dropDuplicates` remembers."""

from __future__ import annotations

import os
from datetime import datetime
from typing import TYPE_CHECKING

from dedup.errors import ConfigError
from dedup.tools.repair.opening import (
    checkpoint_place,
    in_format_of,
    named_operators,
    planned_and_committed,
    reading,
    unfinished,
)
from dedup.values.option import duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dedup.spark.options import Duration

_WITHIN = "dedupeWithinWatermark"
#: Names of the operators in Spark's metadata of the state.
_OPERATORS = ("dedupe", _WITHIN)


def builtin_state(
    spark: SparkSession,
    checkpoint: str | os.PathLike[str],
    *,
    delay: Duration | None = None,
    at: datetime | None = None,
    timestamp: str = "timestamp",
) -> DataFrame:
    """Return the IDs and times that a stopped query with Spark's `dropDuplicates` remembers.

    Give the result to `bootstrap` as history.

    Parameters
    ----------
    spark : SparkSession
        A session of PySpark 4.0 or newer.
    checkpoint : path
        The checkpoint of a query with `dropDuplicatesWithinWatermark` or `dropDuplicates`, written
        by Spark 4.0 or newer.
    delay : str or timedelta, optional
        The delay in the query's `withWatermark`. Needed for `dropDuplicatesWithinWatermark`, whose
        state holds when an ID expires: its time is that minus the delay.
    at : datetime, optional
        Time for all IDs, in the driver's time zone if it has none. `dropDuplicates` remembers a
        time only if a column with times is one of those that it compares. Needed if it compares no
        such column.
    timestamp : str
        Name of the column for these times.

    Returns
    -------
    DataFrame
        The columns that the query compared, and the column with the times.

    Raises
    ------
    ConfigError
        If a micro-batch is unfinished, the checkpoint is of another query, or `delay` or `at` is
        missing or does not apply.
    """
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as T  # noqa: N812

    from dedup.spark.versions import IS_SPARK_3

    if IS_SPARK_3:
        raise ConfigError("PySpark 3.5 cannot read the state of dropDuplicates. Use 4.0 or newer.")
    place = checkpoint_place(os.fspath(checkpoint))
    planned, commits = planned_and_committed(spark, place, "dropDuplicates")
    if (newest := max(planned, default=-1)) > max(commits, default=-1):
        raise unfinished(place, newest)
    with reading(place, "dropDuplicates"), in_format_of(spark, place):
        own = [one for one in named_operators(spark, place) if one[1] in _OPERATORS]
        if len(own) == 1:
            reader = spark.read.format("statestore").option("operatorId", own[0][0])
            state = reader.load(place)
    if len(own) != 1:
        raise ConfigError(
            f"{place} holds {len(own)} states of dropDuplicates or dropDuplicatesWithinWatermark "
            "that Spark 4 wrote. Give the checkpoint of a query with one."
        )
    keys = state.schema["key"].dataType
    assert isinstance(keys, T.StructType)
    timed = any(
        isinstance(field.dataType, (T.TimestampType, T.TimestampNTZType)) for field in keys.fields
    )
    if own[0][1] == _WITHIN:
        if delay is None or at is not None:
            raise ConfigError(
                "dropDuplicatesWithinWatermark stores when an ID expires. Give delay=, the delay "
                "in the query's withWatermark, and no at=."
            )
        delay_us = 1000 * duration().check(delay, "delay")
        time = F.timestamp_micros(F.col("value.expiresAtMicros") - F.lit(delay_us))
    elif delay is not None or (at is None and not timed):
        raise ConfigError(
            "dropDuplicates stores no time, except in a column that it compares. Give at=, a time "
            "for all IDs, and no delay=."
        )
    elif at is None:
        return state.select("key.*")
    else:
        time = F.lit(at)
    if timestamp.lower() in map(str.lower, keys.names):
        raise ConfigError(f"timestamp={timestamp!r} is a column of the ID. Choose another name.")
    return state.select("key.*", time.alias(timestamp))

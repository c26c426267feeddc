"""Poison records, whose value cannot be read: what becomes of them, and how many there were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.functions import pandas_udf

from dedup.errors.cause import LINK
from dedup.sources.kafka.parsed import CAUSE
from dedup.sources.kafka.quarantine import Quarantine, object_text
from dedup.spark.driver.shipping import shipped
from dedup.spark.observations import as_dict

#: What `kafka_records` takes as ``on_error``.
OnError: TypeAlias = Literal["fail", "skip", "quarantine"]
ON_ERROR = ("fail", "skip", "quarantine")

#: So many partitions with poison records are told apart exactly in one micro-batch.
_PARTITIONS_MAX = 10_000


def counted(records: DataFrame, metrics: str) -> DataFrame:
    """Return the records, observed: how many there are, and how many are poison, by partition."""
    bad = F.col(CAUSE).isNotNull()
    # A histogram keeps a bin for each value until there are too many, so it counts exactly; its
    # values are numbers, and a hash of 52 bits is one that a double holds.
    place = F.struct("topic", "partition")
    number = F.shiftrightunsigned(F.xxhash64("topic", "partition"), 12).cast("double")
    return records.observe(
        metrics,
        F.count(F.lit(1)).alias("records"),
        F.count(F.when(bad, 1)).alias("poison"),
        F.collect_set(F.when(bad, F.struct(place.alias("place"), number.alias("number")))).alias(
            "places"
        ),
        F.histogram_numeric(F.when(bad, number), F.lit(_PARTITIONS_MAX)).alias("counts"),
    )


def poison_counts(progress: Any, metrics: str = "kafka_source") -> dict[str, dict[int, int]]:
    """Return how many poison records a micro-batch had, by topic and partition.

    Parameters
    ----------
    progress : StreamingQueryProgress or dict
        As a listener or ``query.recentProgress`` gives it.
    metrics : str
        The option of `kafka_records`.

    Returns
    -------
    dict of str to dict of int to int
        Partitions without poison records are absent.
    """
    observed = (
        progress.get("observedMetrics", {})
        if isinstance(progress, Mapping)
        else progress.observedMetrics
    ).get(metrics)
    if observed is None:
        return {}
    values = as_dict(observed)
    counts: Counter[float] = Counter()
    for x, y in map(_values, values["counts"] or ()):
        counts[float(x)] += int(y)
    found: dict[str, dict[int, int]] = {}
    for place, number in map(_values, values["places"] or ()):
        topic, partition = _values(place)
        found.setdefault(str(topic), {})[int(partition)] = counts[float(number)]
    return found


def refused(records: DataFrame) -> DataFrame:
    """Return the records; the first poison one stops the query, with its place and its cause."""
    text = F.concat(
        # On a line of its own, as a task in Python would raise it.
        F.lit("\ndedup.errors.DataError: The record at offset "),
        F.col("offset").cast("string"),
        F.lit(" of partition "),
        F.col("partition").cast("string"),
        F.lit(" of topic "),
        F.col("topic"),
        F.lit(" is a poison record. "),
        F.col(CAUSE),
        F.lit(
            ' Nothing of its micro-batch is passed by; on_error="quarantine" sets such records '
            f"aside.\n{LINK}poison-records"
        ),
    )
    fine = F.when(F.col(CAUSE).isNull(), True).otherwise(F.raise_error(text).cast("boolean"))
    return records.where(fine)


def quarantined(records: DataFrame, quarantine: Quarantine) -> DataFrame:
    """Return the records without the poison ones, which are written to the quarantine."""
    load = shipped(quarantine)

    # Spark evaluates these hints, and pandas' own Series takes no parameter.
    def set_aside(texts: Iterator[pd.Series]) -> Iterator[pd.Series]:
        kept = load()
        for some in texts:
            yield kept.set_aside(some)

    # It is given nulls where a record is fine, so that only poison records reach Python.
    write = pandas_udf(set_aside, "boolean").asNondeterministic()  # type: ignore[call-overload]
    text = F.when(F.col(CAUSE).isNotNull(), object_text(F.col(CAUSE)))
    return records.where(write(text))


def _values(row: Any) -> tuple[Any, ...]:
    return tuple(as_dict(row).values())

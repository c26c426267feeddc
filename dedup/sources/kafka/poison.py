"""Handles poison records, whose value cannot be read.

A poison record stops the query, or it is counted and left out. It may also be stored in the
quarantine, a folder with one object for each poison record. The object is named by topic, partition
and offset. If a retried task or a replayed micro-batch finds the object, it does not write another,
so every poison record is stored once.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeAlias

import pandas as pd
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.functions import pandas_udf

from dedup.errors import CatalogError, ConfigError, SourceError, faults
from dedup.errors.cause import LINK
from dedup.sources.kafka.decoder import CAUSE
from dedup.spark.driver.shipping import shipped
from dedup.spark.observations import as_dict, progress_fields
from dedup.storage.location import FileSystemFactory
from dedup.storage.root import Root

#: Values of the parameter ``on_error`` of `kafka_records`.
OnError: TypeAlias = Literal["fail", "skip", "quarantine"]

#: Largest number of partitions for which a micro-batch counts poison records exactly.
_PARTITIONS_MAX = 10_000
#: Number of objects to write concurrently, because each write waits for a disk or object store.
_WRITERS = 8
#: Fields of an object in the quarantine.
_STORED = (
    "topic string, partition int, offset bigint, timestamp_ms bigint, timestamp_type int, "
    "error string, key string, value string, headers array<struct<key: string, value: string>>"
)


def counted(records: DataFrame, metrics: str) -> DataFrame:
    """Return the records. An observation counts all records, and poison records by partition."""
    bad = F.col(CAUSE).isNotNull()
    # A histogram keeps a bin for each value until there are too many, so it counts exactly. Its
    # values are numbers, and a double holds a hash of 52 bits.
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
        The progress that a listener or ``query.recentProgress`` gives.
    metrics : str
        The value of the option `metrics` of `kafka_records`.

    Returns
    -------
    dict of str to dict of int to int
        Numbers of poison records. Partitions without poison records are left out.
    """
    observed = (progress_fields(progress).get("observedMetrics") or {}).get(metrics)
    if observed is None:
        return {}
    values = as_dict(observed)
    by_number: Counter[float] = Counter()
    for x, y in map(_values, values["counts"] or ()):
        by_number[float(x)] += int(y)
    counts: dict[str, dict[int, int]] = {}
    for place, number in map(_values, values["places"] or ()):
        topic, partition = _values(place)
        counts.setdefault(str(topic), {})[int(partition)] = by_number[float(number)]
    return counts


def refused(records: DataFrame) -> DataFrame:
    """Return the records. The first poison record stops the query, and the error names it."""
    text = F.format_string(
        "The record at offset %d of partition %d of topic %s is a poison record. %s No record of "
        'its micro-batch was skipped. on_error="quarantine" sets such records aside.',
        *("offset", "partition", "topic", CAUSE),
    )
    # The text begins on a line of its own, like the error of a Python task.
    error = F.concat(F.lit("\ndedup.errors.DataError: "), text, F.lit(f"\n{LINK}poison-records"))
    is_good = F.when(F.col(CAUSE).isNull(), True).otherwise(F.raise_error(error).cast("boolean"))
    return records.where(is_good)


def quarantined(records: DataFrame, quarantine: Quarantine) -> DataFrame:
    """Return the good records, and write poison records to the quarantine."""
    load = shipped(quarantine)

    # Spark evaluates these type hints, and pandas' own Series takes no type parameter.
    def set_aside(texts: Iterator[pd.Series]) -> Iterator[pd.Series]:
        folder = load()
        for some in texts:
            yield folder.set_aside(some)

    # Python gets null for a good record, so that only poison records reach it.
    write = pandas_udf(set_aside, "boolean").asNondeterministic()  # type: ignore[call-overload]
    return records.where(write(F.when(F.col(CAUSE).isNotNull(), _object_text())))


def _object_text() -> Column:
    """Return the expression for a poison record's object, a line of JSON with bytes in base64."""
    fields = F.struct(
        "topic",
        "partition",
        "offset",
        F.when(F.col("timestampType") >= 0, F.unix_millis("timestamp")).alias("timestamp_ms"),
        F.col("timestampType").alias("timestamp_type"),
        F.col(CAUSE).alias("error"),
        F.base64("key").alias("key"),
        F.base64("value").alias("value"),
        _headers(F.base64),
    )
    return F.to_json(fields, {"ignoreNullFields": "false"})


def _headers(convert: Callable[[Column], Column]) -> Column:
    return F.transform(
        "headers", lambda h: F.struct(h["key"].alias("key"), convert(h["value"]).alias("value"))
    ).alias("headers")


class Quarantine:
    """A folder of poison records. `where` has any form that `dedup_by_id` takes as `catalog`."""

    def __init__(self, where: str | os.PathLike[str] | FileSystemFactory) -> None:
        self._root = Root(where)

    def check(self) -> None:
        """Write and delete an object in the folder. Raises ConfigError if that fails."""
        name = f"probe-{os.urandom(8).hex()}"
        try:
            self._root.put_bytes(name, b"")
            self._root.delete([name])
        except CatalogError as error:
            raise ConfigError(
                f"The quarantine {self._root.url()} cannot be written: {_reason(error)}. Give "
                "another folder, or make this one writable."
            ) from None

    def set_aside(self, texts: pd.Series[str]) -> pd.Series[bool]:
        """Write the texts of poison records. Return True for good records, whose text is null."""
        fine = texts.isna()
        bad = texts[~fine]
        if len(bad):
            self.write(bad)
        return fine

    def write(self, texts: Iterable[str]) -> None:
        """Write the objects that do not exist yet, and return when all objects are durable."""
        faults.point("quarantine.before")
        with ThreadPoolExecutor(_WRITERS) as pool:
            try:
                # Keep the order of the records, so that an error names the first bad record.
                for _ in pool.map(self._create, texts):
                    pass
            except CatalogError as error:
                raise SourceError(
                    f"Poison records cannot be written to the quarantine {self._root.url()}: "
                    f"{_reason(error)}. No record was skipped. Make the folder writable, then "
                    "start the query again.",
                    remedy="poison-records",
                ) from None
        faults.point("quarantine.after")

    def _create(self, text: str) -> None:
        record = json.loads(text)
        # Readers skip folders whose name begins with an underscore, and a topic's name may do so.
        name = "topic={topic}/partition={partition}/{offset:020d}.json".format_map(record)
        data = text.encode() + b"\n"
        if self._root.create_bytes(name, data):
            return
        try:
            stored = json.loads(self._root.read_bytes(name))
            is_same = all(stored.get(x) == record.get(x) for x in ("key", "value", "timestamp_ms"))
        except (ValueError, AttributeError, RecursionError):
            is_same = False
        if not is_same:
            raise SourceError(
                f"The quarantine has another record as {self._root.url(name)}, or a damaged one. "
                "Either the folder belongs to another cluster, or the topic was deleted and "
                "created again. No record was skipped. Use a separate folder for each cluster and "
                "for the new topic, or move a damaged file away.",
                remedy="poison-records",
            )


def quarantined_records(spark: SparkSession, folder: str, *, stream: bool = False) -> DataFrame:
    """Return the poison records of a quarantine as a DataFrame.

    Parameters
    ----------
    spark : SparkSession
    folder : str
        The quarantine's URI as Spark spells it, such as ``s3a://`` for ``s3://``.
    stream : bool
        Return a streaming DataFrame, which continues with records that are set aside later. A sink
        that commits once, such as ``dedup_kafka``, publishes each record once.

    Returns
    -------
    DataFrame
        With columns ``topic``, ``partition``, ``offset``, ``timestamp``, ``timestampType``,
        ``error``, and the record's ``key``, ``value`` and ``headers``.
    """
    # Do not infer partition columns, because the objects hold the columns that folders name.
    options = {"recursiveFileLookup": "true", "pathGlobFilter": "*.json", "mode": "FAILFAST"}
    reader = spark.readStream if stream else spark.read
    rows = reader.schema(_STORED).options(**options).json(folder)
    return rows.select(
        "topic",
        "partition",
        "offset",
        F.timestamp_millis("timestamp_ms").alias("timestamp"),
        F.col("timestamp_type").alias("timestampType"),
        "error",
        F.unbase64("key").alias("key"),
        F.unbase64("value").alias("value"),
        _headers(F.unbase64),
    )


def _reason(error: CatalogError) -> str:
    """Return the error of the storage, without our text about a catalog."""
    return str(error.__cause__ or error)


def _values(row: Any) -> tuple[Any, ...]:
    return tuple(as_dict(row).values())

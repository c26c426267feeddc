"""Where poison records are set aside: one object for each, named by its place in Kafka.

A record's topic, partition and offset identify it. Because they are the object's name, a task that
is tried again, a micro-batch that is replayed and a second action over it find the object there and
leave it alone: every poison record is there once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from dedup.catalog.location import FileSystemFactory
from dedup.catalog.root import Root
from dedup.errors import CatalogError, ConfigError, SourceError, faults

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column, DataFrame, SparkSession

#: Objects that are written at a time: each waits for a disk or an object store.
_WRITERS = 8
_PROBE = "probe"
#: Columns of what `quarantined_records` returns, as they stand in the objects.
_STORED = (
    "topic string, partition int, offset bigint, timestamp_ms bigint, timestamp_type int, "
    "error string, key string, value string, headers array<struct<key: string, value: string>>"
)


def object_name(topic: str, partition: int, offset: int) -> str:
    """Return the name of a record's object, which is its place.

    Examples
    --------
    >>> object_name("orders", 3, 17)
    'topic=orders/partition=3/00000000000000000017.json'
    """
    # Readers skip folders whose name begins with an underscore, as that of a topic may.
    return f"topic={topic}/partition={partition}/{offset:020d}.json"


def object_text(cause: Column) -> Column:
    """Return a record's object: one line of JSON, bytes in base64; made on the JVM.

    Parameters
    ----------
    cause : Column
        Why its value cannot be read.
    """
    from pyspark.sql import functions as fn

    headers = fn.transform(
        "headers", lambda h: fn.struct(h["key"].alias("key"), fn.base64(h["value"]).alias("value"))
    )
    fields = fn.struct(
        "topic",
        "partition",
        "offset",
        fn.when(fn.col("timestampType") >= 0, fn.unix_millis("timestamp")).alias("timestamp_ms"),
        fn.col("timestampType").alias("timestamp_type"),
        cause.alias("error"),
        fn.base64("key").alias("key"),
        fn.base64("value").alias("value"),
        headers.alias("headers"),
    )
    return fn.to_json(fields, {"ignoreNullFields": "false"})


class Quarantine:
    """A folder of poison records.

    Parameters
    ----------
    where : str, path, or callable
        As `dedup_by_id` takes its catalog.
    """

    def __init__(self, where: str | os.PathLike[str] | FileSystemFactory) -> None:
        self._root = Root(where)

    def check(self) -> None:
        """Write to the folder and clean up.

        Raises
        ------
        ConfigError
            If that fails.
        """
        name = f"{_PROBE}-{os.urandom(8).hex()}"
        try:
            self._root.put_bytes(name, b"")
            self._root.delete([name])
        except CatalogError as error:
            raise ConfigError(
                f"The quarantine {self._root.url()} cannot be written: {_reason(error)}. Give "
                "another folder, or make this one writable."
            ) from None

    def set_aside(self, texts: pd.Series[str]) -> pd.Series[bool]:
        """Write objects; return which rows go on.

        Parameters
        ----------
        texts : Series of str
            What `object_text` makes of poison records; null where a record is fine.

        Raises
        ------
        SourceError
            When the folder cannot be written. The records are not passed by then.
        """
        fine = texts.isna()
        bad = texts[~fine]
        if len(bad):
            self.write(bad)
        return fine

    def write(self, texts: Iterable[str]) -> None:
        """Write objects that are not there yet; they are durable when this returns."""
        faults.point("quarantine.before")
        with ThreadPoolExecutor(_WRITERS) as pool:
            try:
                # Their order is that of the records, so a failure is the first record's.
                for _ in pool.map(self._create, texts):
                    pass
            except CatalogError as error:
                raise SourceError(
                    f"Poison records cannot be written to the quarantine {self._root.url()}: "
                    f"{_reason(error)}. None was passed by. Make the folder writable, then start "
                    "the query again.",
                    remedy="poison-records",
                ) from None
        faults.point("quarantine.after")

    def _create(self, text: str) -> None:
        place = json.loads(text)
        name = object_name(place["topic"], place["partition"], place["offset"])
        data = text.encode() + b"\n"
        if self._root.create_bytes(name, data):
            return
        try:
            there = json.loads(self._root.read_bytes(name))
            is_same = all(there.get(x) == place.get(x) for x in ("key", "value", "timestamp_ms"))
        except (ValueError, AttributeError, RecursionError):
            is_same = False
        if not is_same:
            raise SourceError(
                f"The quarantine has another record as {self._root.url(name)}, or a damaged one: "
                "the folder belongs to another cluster, or the topic was made anew. None was "
                "passed by. Give each cluster, and a topic that was made anew, a folder of its "
                "own; move a damaged file away.",
                remedy="poison-records",
            )


def quarantined_records(spark: SparkSession, folder: str, *, stream: bool = False) -> DataFrame:
    """Return the poison records of a quarantine as a DataFrame.

    Parameters
    ----------
    spark : SparkSession
    folder : str
        The quarantine, as Spark names it (``s3a://`` where `kafka_records` has ``s3://``).
    stream : bool
        Return a streaming DataFrame, which goes on with what is set aside later. Written by a sink
        that commits once, such as ``dedup_kafka``, it brings the records to a topic or a table,
        each of them once.

    Returns
    -------
    DataFrame
        With columns ``topic``, ``partition``, ``offset``, ``timestamp``, ``timestampType``,
        ``error``, ``key``, ``value`` and ``headers``. Key, value and headers are those of the
        record.
    """
    from pyspark.sql import functions as fn

    reader = spark.readStream if stream else spark.read
    rows = (
        reader.schema(_STORED)
        # The columns are in the objects; the folders only keep them apart.
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", "*.json")
        .option("mode", "FAILFAST")
        .json(folder)
    )
    headers = fn.transform(
        "headers",
        lambda one: fn.struct(one["key"].alias("key"), fn.unbase64(one["value"]).alias("value")),
    )
    return rows.select(
        "topic",
        "partition",
        "offset",
        fn.timestamp_millis("timestamp_ms").alias("timestamp"),
        fn.col("timestamp_type").alias("timestampType"),
        "error",
        fn.unbase64("key").alias("key"),
        fn.unbase64("value").alias("value"),
        headers.alias("headers"),
    )


def _reason(error: CatalogError) -> str:
    """Return what the storage said: the error's own text is about a catalog."""
    return str(error.__cause__ or error)

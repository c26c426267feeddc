"""Append each micro-batch once with the Spark connector of Delta or Iceberg, in ``foreachBatch``.

Delta's own recipe (``txnAppId`` and ``txnVersion``) skips a micro-batch that is in the table
*without computing it*. If the query has a stateful operator, Spark 4.1 and newer then fail, because
the operator's state was not committed (SPARK-52008). Iceberg has no recipe (apache/iceberg#8809).
The functions here first look whether the table has the micro-batch. If so, they read all rows and
write none.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from dedup.errors import faults
from dedup.sinks.batch import new_batch
from dedup.sinks.figures import reported
from dedup.sinks.foreach_batch import NamedSink, running_query
from dedup.sinks.lakehouse.delta import app_id, delta_library
from dedup.sinks.lakehouse.iceberg import marker_property
from dedup.sinks.options import NAME, located
from dedup.sinks.protocol import refuse_older_checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_IN_SUMMARY = "dedup.marker"


class _Once(NamedSink, ABC):
    #: Name of the public function that made this object. Errors show the name.
    function: ClassVar[str]
    #: Names of the rows and the bytes in the metrics of a commit.
    sizes: ClassVar[tuple[str, str]]

    def __init__(
        self, table: str, name: str, checkpoint: str, options: Mapping[str, str] | None
    ) -> None:
        NAME.check(name, "name")
        self._table, self._options = table, dict(options or {})
        self.sink, self.checkpoint = name, checkpoint

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Append the rows of a micro-batch, unless the table has them already."""
        location = located(self.checkpoint)
        with (
            running_query(rows, batch_id, location, self.function) as (query_id, start),
            reported(new_batch(query_id, self.sink, start, batch_id)) as figures,
        ):
            self._publish(rows, query_id, batch_id)
            with suppress(Exception):  # unknown figures must not affect the query
                metrics = self._metrics(rows.sparkSession, query_id, batch_id)
                figures.rows, figures.bytes = (int(metrics.get(name, 0)) for name in self.sizes)

    def _publish(self, rows: DataFrame, query_id: str, batch_id: int) -> None:
        newest = self._newest(rows.sparkSession, query_id)
        refuse_older_checkpoint(batch_id, -1 if newest is None else newest)
        if newest == batch_id:
            # Read all rows, because stateful operators commit their state only then.
            rows.write.format("noop").mode("append").save()
            return
        faults.point("lakehouse.commit.before")
        self._append(rows, query_id, batch_id)
        faults.point("lakehouse.commit.after")

    @abstractmethod
    def _newest(self, session: SparkSession, query_id: str) -> int | None:
        """Return the newest micro-batch of the query that is in the table, or None."""

    @abstractmethod
    def _append(self, rows: DataFrame, query_id: str, batch_id: int) -> None:
        """Append the rows of a micro-batch together with a marker."""

    @abstractmethod
    def _metrics(self, session: SparkSession, query_id: str, batch_id: int) -> Mapping[str, Any]:
        """Return the metrics of the commit that has appended a micro-batch, or raise any error."""


class DeltaOnce(_Once):
    """The function for ``foreachBatch`` that `delta_once` returns."""

    function = "delta_once"
    sizes = "numOutputRows", "numOutputBytes"

    def _app_id(self, query_id: str) -> str:
        # Use another ID than `delta_sink`, whose markers also hold the content hash.
        return f"{app_id(query_id, self.sink)}/once"

    def _sql_name(self) -> str:
        is_name = "/" not in self._table and ":" not in self._table
        return self._table if is_name else f"delta.`{self._table}`"

    def _newest(self, session: SparkSession, query_id: str) -> int | None:
        detail = session.sql(f"DESCRIBE DETAIL {self._sql_name()}").collect()[0]
        self._log = delta_library().DeltaTable(detail["location"])
        newest: int | None = self._log.transaction_version(self._app_id(query_id))
        return newest

    def _append(self, rows: DataFrame, query_id: str, batch_id: int) -> None:
        writer = rows.write.format("delta").mode("append").options(**self._options)
        writer = writer.option("txnAppId", self._app_id(query_id)).option("txnVersion", batch_id)
        if self._sql_name() == self._table:
            writer.saveAsTable(self._table)
        else:
            writer.save(self._table)

    def _metrics(self, session: SparkSession, query_id: str, batch_id: int) -> Mapping[str, Any]:
        before = self._log.version()
        self._log.update_incremental()
        commits = self._log.history(self._log.version() - before)
        # A commit does not name its application, so the writes of two writers look alike.
        [mine] = (commit for commit in commits if commit["operation"] == "WRITE")
        metrics: Mapping[str, Any] = mine["operationMetrics"]
        return metrics


class IcebergOnce(_Once):
    """The function for ``foreachBatch`` that `iceberg_once` returns."""

    function = "iceberg_once"
    sizes = "added-records", "added-files-size"

    def _property(self, query_id: str) -> str:
        return f"{marker_property(query_id, self.sink)}.once"

    def _publish(self, rows: DataFrame, query_id: str, batch_id: int) -> None:
        super()._publish(rows, query_id, batch_id)
        # Spark's writer cannot set a property in its commit, and the marker in the snapshot's
        # summary disappears when the snapshot expires.
        rows.sparkSession.sql(
            f"ALTER TABLE {self._table} SET TBLPROPERTIES "
            f"('{self._property(query_id)}' = '{batch_id}')"
        )

    def _newest(self, session: SparkSession, query_id: str) -> int | None:
        # The session's catalog caches what it has read of a table, so refresh it first.
        session.sql(f"REFRESH TABLE {self._table}")
        mine, batch_ids = self._property(query_id), []
        for row in session.sql(f"SHOW TBLPROPERTIES {self._table}").collect():
            if row["key"] == mine:
                batch_ids.append(int(row["value"]))
        summaries = session.sql(
            f"SELECT summary['{_IN_SUMMARY}'] AS marker FROM {self._table}.snapshots "
            f"WHERE summary['{_IN_SUMMARY}'] IS NOT NULL"
        ).collect()
        for row in summaries:
            marker = json.loads(row["marker"])
            if marker["marker"] == mine:
                batch_ids.append(int(marker["batch_id"]))
        return max(batch_ids, default=None)

    def _marker(self, query_id: str, batch_id: int) -> str:
        return json.dumps({"marker": self._property(query_id), "batch_id": batch_id})

    def _append(self, rows: DataFrame, query_id: str, batch_id: int) -> None:
        writer = rows.writeTo(self._table).options(**self._options)
        marker = self._marker(query_id, batch_id)
        writer.option(f"snapshot-property.{_IN_SUMMARY}", marker).append()

    def _metrics(self, session: SparkSession, query_id: str, batch_id: int) -> Mapping[str, Any]:
        [snapshot] = session.sql(
            f"SELECT summary FROM {self._table}.snapshots "
            f"WHERE summary['{_IN_SUMMARY}'] = '{self._marker(query_id, batch_id)}'"
        ).collect()
        summary: Mapping[str, Any] = snapshot["summary"]
        return summary


def delta_once(
    table: str, *, checkpoint: str, name: str = "delta", options: Mapping[str, str] | None = None
) -> DeltaOnce:
    """Return a function for ``foreachBatch`` that appends each micro-batch to Delta Lake once.

    The function writes with Delta's own Spark connector.

    Parameters
    ----------
    table : str
        A path or URI, or the name of a table as in SQL, with its schema (``shop.orders``).
    checkpoint : str
        The query's checkpoint location.
    name : str, optional
        Name of the sink within its query. Two sinks into one table need different names.
    options : mapping of str to str, optional
        Options of Delta's writer, such as ``mergeSchema``.

    Raises
    ------
    ConfigError
        If the name cannot be part of a marker.
    MissingExtraError
        If the extra ``delta`` is not installed. This function needs it to read the markers.

    Notes
    -----
    Two drivers of a query may run at the same time, for example from a copy of the checkpoint.
    According to Delta's documentation, Delta then rejects one of their commits. Unlike
    `delta_sink`, this function does not compare rows with what is published.
    """
    delta_library()
    return DeltaOnce(table, name, checkpoint, options)


def iceberg_once(
    table: str, *, checkpoint: str, name: str = "iceberg", options: Mapping[str, str] | None = None
) -> IcebergOnce:
    """Return a function for ``foreachBatch`` that appends each micro-batch to Iceberg once.

    The function writes with Iceberg's own Spark connector.

    Parameters
    ----------
    table : str
        Name as in SQL, with catalog and namespace.
    checkpoint : str
        The query's checkpoint location.
    name : str, optional
        Name of the sink within its query. Two sinks into one table need different names.
    options : mapping of str to str, optional
        Options of Iceberg's writer.

    Raises
    ------
    ConfigError
        If the name cannot be part of a marker.

    Notes
    -----
    The function first commits the marker in the snapshot's summary, and then in a property of the
    table. If a driver dies between these commits, and the snapshot expires before the next start,
    the next start writes the micro-batch again. Two concurrent drivers may both write a
    micro-batch, because appends to Iceberg never conflict. `iceberg_sink` has neither gap.
    """
    return IcebergOnce(table, name, checkpoint, options)

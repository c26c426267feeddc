"""The tables' own connectors of Spark in ``foreachBatch``, each micro-batch once.

Delta's recipe for it (``txnAppId`` and ``txnVersion``) passes over a micro-batch that is there
*without computing it*. Behind a stateful operator Spark 4.1 and newer stops at that, for the
operator's state was not committed (SPARK-52008). Iceberg has no recipe (apache/iceberg#8809). Here
the table is asked first, and a micro-batch that is there is read to its end and dropped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dedup.errors import SinkError, faults
from dedup.sinks.foreach_batch import NamedSink, query_of, query_of_checkpoint
from dedup.sinks.lakehouse.delta_table import app_id, delta_library
from dedup.sinks.lakehouse.iceberg_table import marker_property
from dedup.sinks.options import check_name, located

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_IN_SUMMARY = "dedup.marker"


class DeltaOnce(NamedSink):
    """Function for ``foreachBatch``; made by `delta_once`."""

    def __init__(self, table: str, name: str, checkpoint: str, options: Mapping[str, str]) -> None:
        self._table, self._name, self._checkpoint = table, name, located(checkpoint)
        self._options = dict(options)
        self.sink, self.checkpoint = name, checkpoint

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Append the rows of a micro-batch, unless they are there."""
        query_id = _query(rows, self._checkpoint, batch_id, "delta_once")
        # Of its own: the markers of `delta_sink` tell more.
        mine = f"{app_id(query_id, self._name)}/once"
        session = rows.sparkSession
        target = self._table if _is_name(self._table) else f"delta.`{self._table}`"
        where = session.sql(f"DESCRIBE DETAIL {target}").collect()[0]["location"]
        found = delta_library().DeltaTable(where).transaction_version(mine)
        if _is_there(found, batch_id, self._table):
            _drain(rows)
            return
        faults.point("lakehouse.commit.before")
        writer = rows.write.format("delta").mode("append").options(**self._options)
        writer = writer.option("txnAppId", mine).option("txnVersion", batch_id)
        writer.saveAsTable(self._table) if target == self._table else writer.save(self._table)
        faults.point("lakehouse.commit.after")


class IcebergOnce(NamedSink):
    """Function for ``foreachBatch``; made by `iceberg_once`."""

    def __init__(self, table: str, name: str, checkpoint: str, options: Mapping[str, str]) -> None:
        self._table, self._name, self._checkpoint = table, name, located(checkpoint)
        self._options = dict(options)
        self.sink, self.checkpoint = name, checkpoint

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Append the rows of a micro-batch, unless they are there."""
        query_id = _query(rows, self._checkpoint, batch_id, "iceberg_once")
        mine = f"{marker_property(query_id, self._name)}.once"
        session = rows.sparkSession
        # This session has a catalog of its own, which keeps what it has read of a table.
        session.sql(f"REFRESH TABLE {self._table}")
        if _is_there(self._newest(session, mine), batch_id, self._table):
            _drain(rows)
        else:
            faults.point("lakehouse.commit.before")
            marker = json.dumps({"marker": mine, "batch_id": batch_id})
            writer = rows.writeTo(self._table).options(**self._options)
            writer.option(f"snapshot-property.{_IN_SUMMARY}", marker).append()
            faults.point("lakehouse.commit.after")
        # The summary is gone once the snapshot expires. Spark's writer cannot set a property with
        # the rows, so it comes behind them.
        session.sql(f"ALTER TABLE {self._table} SET TBLPROPERTIES ('{mine}' = '{batch_id}')")

    def _newest(self, session: Any, mine: str) -> int | None:
        """Return the newest micro-batch that the property or a snapshot of the table tells of."""
        found = []
        for row in session.sql(f"SHOW TBLPROPERTIES {self._table}").collect():
            if row["key"] == mine:
                found.append(int(row["value"]))
        summaries = session.sql(
            f"SELECT summary['{_IN_SUMMARY}'] AS told FROM {self._table}.snapshots "
            f"WHERE summary['{_IN_SUMMARY}'] IS NOT NULL"
        ).collect()
        for row in summaries:
            told = json.loads(row["told"])
            if told["marker"] == mine:
                found.append(int(told["batch_id"]))
        return max(found, default=None)


def delta_once(
    table: str, *, checkpoint: str, name: str = "delta", options: Mapping[str, str] | None = None
) -> DeltaOnce:
    """Return a function for ``foreachBatch`` that appends with Delta's own connector, once.

    Parameters
    ----------
    table : str
        A path or URI, or the name of a table as in SQL, with its schema (``shop.orders``).
    checkpoint : str
        The query's checkpoint location.
    name : str, optional
        Of the sink within its query; two of them to one table need two.
    options : mapping of str to str, optional
        Of Delta's writer, such as ``mergeSchema``.

    Raises
    ------
    ConfigError
        If the name cannot be part of a marker.
    MissingExtraError
        If the extra ``delta`` is not installed: delta-rs tells what the table has.

    Notes
    -----
    Of two drivers at once (a copy of the checkpoint, a start that was frozen) Delta refuses one, by
    its documentation.
    Rows are not compared, other than by `delta_sink`.
    """
    delta_library()
    check_name("name", name, "markers")
    return DeltaOnce(table, name, checkpoint, options or {})


def iceberg_once(
    table: str, *, checkpoint: str, name: str = "iceberg", options: Mapping[str, str] | None = None
) -> IcebergOnce:
    """Return a function for ``foreachBatch`` that appends with Iceberg's own connector, once.

    Parameters
    ----------
    table : str
        As in SQL, with catalog and namespace.
    checkpoint : str
        The query's checkpoint location.
    name : str, optional
        Of the sink within its query; two of them to one table need two.
    options : mapping of str to str, optional
        Of Iceberg's writer.

    Raises
    ------
    ConfigError
        If the name cannot be part of a marker.

    Notes
    -----
    The marker is in the summary of the snapshot, and right after in a property of the table. Only
    where a driver dies between the two, and the snapshot expires before the next start, is the
    micro-batch written again. Of two drivers at once both may write: Iceberg's appends never
    conflict. `iceberg_sink` has neither gap.
    """
    check_name("name", name, "markers")
    return IcebergOnce(table, name, checkpoint, options or {})


def _is_name(table: str) -> bool:
    return "/" not in table and ":" not in table


def _query(rows: DataFrame, checkpoint: str, batch_id: int, function: str) -> str:
    return query_of(rows) or query_of_checkpoint(checkpoint, batch_id, function)


def _is_there(found: int | None, batch_id: int, table: str) -> bool:
    """Return whether a micro-batch is in the table."""
    if found is not None and found > batch_id:
        raise SinkError(
            f"The checkpoint is older than the sink: the query is at micro-batch {batch_id}, and "
            f"table {table} holds micro-batch {found} already. Nothing was written. A checkpoint "
            "that was restored, or copied, would publish again what is there. After `dedup catalog "
            "adopt` the sink needs a new name.",
            remedy="sink-older-checkpoint",
        )
    return found == batch_id


def _drain(rows: DataFrame) -> None:
    """Read the rows to their end, so that stateful operators commit what they know."""
    rows.write.format("noop").mode("append").save()

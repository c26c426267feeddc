"""The MySQL sink, on the sink kit. Markers are rows of a table in the same transactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from dedup.sinks.kit.database import DatabaseSink, answering_server, close, database_work, give_back
from dedup.sinks.kit.slots import Stored, TransactionalWork
from dedup.sinks.marker import Marker
from dedup.sinks.mysql.columns import quoted
from dedup.sinks.mysql.connections import (
    connected,
    end_session,
    is_lock_wait,
    mysql_library,
    session,
    translated_errors,
)
from dedup.sinks.mysql.options import MysqlOptions
from dedup.sinks.mysql.tables import MysqlTable, crash_risk, exists, find_table, located

#: A name of a session in one transaction. The number alone may be of another session, because the
#: server counts from 1 again after a restart.
_SESSION = "CONCAT(CONNECTION_ID(), ' ', UUID())"
#: Seconds that an earlier owner of a slot may take to end its transaction.
_PATIENCE_S = 1
_MARKERS = """
CREATE TABLE IF NOT EXISTS {name} (
    marker_key VARBINARY(200) PRIMARY KEY, marker VARBINARY(4000) NOT NULL,
    holder VARBINARY(60) NOT NULL
) ENGINE = InnoDB
"""


@dataclass(frozen=True)
class MysqlSink(DatabaseSink[Any]):
    """The sink into one table. Spark sends this object to the tasks."""

    options: MysqlOptions
    table: MysqlTable

    def begin(self) -> Any:
        connection = connected(self.options)
        try:
            with translated_errors(self.options), connection.cursor() as cursor:
                connection.begin()
                self.table.check(cursor)
        except BaseException:
            self.rollback(connection)
            raise
        return connection

    def read_marker(self, transaction: Any, key: str) -> str | None:
        """Lock the row of a key, and return its marker.

        The row names the session that holds the lock. If that session keeps the lock for more than
        a second, it may be frozen, so this ends it, and the server rolls its transaction back.
        """
        with translated_errors(self.options), transaction.cursor() as cursor:
            wait = "SET SESSION innodb_lock_wait_timeout = %s"
            cursor.execute(wait, (_PATIENCE_S,))
            try:
                self._lock(cursor, key)
            except mysql_library().OperationalError as error:
                if not is_lock_wait(error):
                    raise
                self._end_holder(key)
                cursor.execute(wait, (self.options.timeout_seconds,))
                self._lock(cursor, key)
            cursor.execute(wait, (self.options.timeout_seconds,))
            cursor.execute(f"SELECT marker FROM {self._markers} WHERE marker_key = %s", (key,))
            return bytes(cursor.fetchone()[0]).decode()

    def _lock(self, cursor: Any, key: str) -> None:
        cursor.execute(
            f"INSERT INTO {self._markers} (marker_key, marker, holder) VALUES (%s, '', {_SESSION}) "
            f"ON DUPLICATE KEY UPDATE holder = {_SESSION}",
            (key,),
        )

    def _end_holder(self, key: str) -> None:
        """End the session that has locked the row of a key, and has not committed its name."""
        newest, committed = (self._holder(key, each) for each in ("UNCOMMITTED", "COMMITTED"))
        if newest is not None and newest != committed:
            with session(self.options) as cursor:
                end_session(cursor, int(newest.split()[0]))

    def _holder(self, key: str, level: str) -> bytes | None:
        with session(self.options) as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL READ {level}")
            cursor.execute(f"SELECT holder FROM {self._markers} WHERE marker_key = %s", (key,))
            row = cursor.fetchone()
            return row and bytes(row[0])

    def write_rows(self, transaction: Any, rows: pa.RecordBatch) -> None:
        self.table.write(transaction, rows)

    def write_marker(self, transaction: Any, key: str, marker: str) -> None:
        with translated_errors(self.options), transaction.cursor() as cursor:
            cursor.execute(
                f"UPDATE {self._markers} SET marker = %s WHERE marker_key = %s", (marker, key)
            )

    def commit(self, transaction: Any) -> None:
        transaction.commit()
        give_back(self.options.connect, transaction)

    def rollback(self, transaction: Any) -> None:
        # Do not keep the connection: its server may have become a replica, which only reads.
        close(transaction)


def ready(options: MysqlOptions, columns: Sequence[tuple[str, str]]) -> TransactionalWork:
    """Check the tables and the stream's columns, and return the work of the sink.

    Creates the table of markers, outside of every transaction, because MySQL commits at each DDL.
    Raises ConfigError if a table or column is missing or does not fit. Raises SinkError if no
    server answers.
    """
    answering = answering_server("Start the query again")
    with answering, translated_errors(options), session(options) as cursor:
        markers = _markers_table(cursor, options)
        options = replace(options, markers=markers)
        if not exists(cursor, markers):  # the user may lack the privilege CREATE
            cursor.execute(_MARKERS.format(name=markers))
        table = find_table(cursor, options, columns)
        risk = crash_risk(cursor)
    return database_work(MysqlSink(options, table), options.connect, risk)


def read_markers(options: MysqlOptions) -> list[Marker]:
    """Return the newest marker of each slot that a sink has, in any query."""
    with translated_errors(options), session(options) as cursor:
        markers = _markers_table(cursor, options)
        if not exists(cursor, markers):
            return []
        cursor.execute(f"SELECT marker_key, marker FROM {markers}")
        own_markers = []
        for key, text in ((bytes(row[0]).decode(), row[1]) for row in cursor.fetchall()):
            marker = Stored.from_text(bytes(text).decode(), key).marker
            if marker is not None and marker.sink == options.name:
                own_markers.append(marker)
        return own_markers


def _markers_table(cursor: Any, options: MysqlOptions) -> str:
    if options.markers is not None:
        return ".".join(map(quoted, located(cursor, options.markers)))
    return f"{quoted(located(cursor, options.table)[0])}.`dedup_markers`"

"""The PostgreSQL sink, on the sink kit. Markers are rows of a table in the same transactions.

=========  ======================================================================
column     meaning
=========  ======================================================================
query_id   ID of the checkpoint's query
sink       name of the sink within its query
slot       number of the task, -1 for whole micro-batches
owner      ID of the slot's owner (a new ID each time somebody acquires the slot)
marker     JSON with a checksum (`dedup.sinks.marker`), NULL before the first marker
=========  ======================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from threading import Timer
from typing import Any

import pyarrow as pa

from dedup.errors import DataError, SinkError
from dedup.sinks.kit.database import DatabaseSink, answering_server, database_work
from dedup.sinks.kit.slots import Stored, TransactionalWork
from dedup.sinks.marker import BATCH_SLOT, Marker
from dedup.sinks.postgres.connections import (
    Connection,
    connected,
    give_back,
    refuse_read_only,
    transaction,
    translated_errors,
)
from dedup.sinks.postgres.copy_rows import CopyRows
from dedup.sinks.postgres.options import PostgresOptions
from dedup.sinks.postgres.quarantine import CHECK, COLUMNS, RejectedRecords
from dedup.sinks.postgres.tables import (
    MARKERS_KEY,
    TargetTable,
    find_table,
    make_own_table,
    markers_table,
)
from dedup.sinks.protocol import Aborted

_COLUMNS = {
    "query_id": "text", "sink": "text", "slot": "integer", "owner": "uuid NOT NULL",
    "marker": "text",
}  # fmt: skip
_THIS_SLOT = "WHERE query_id = %s AND sink = %s AND slot = %s"
#: Owner in a row that only locks its slot. Whoever commits the row writes another owner.
_NOBODY = "00000000-0000-0000-0000-000000000000"
#: Seconds that an earlier owner of a slot may take to end its transaction.
_PATIENCE_S = 1
#: Time after which the server ends a session that is idle in a transaction, and may block others.
_IDLE_IN_TRANSACTION = "8h"
_END_BLOCKERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid = ANY(pg_blocking_pids(%s)) AND datname = current_database() AND usename = current_user
"""
_INCOMING = "pg_temp.dedup_incoming"


@dataclass(slots=True)
class PostgresTransaction:
    """An open transaction, and the rows that are on their way to the server in it."""

    connection: Connection
    rows: CopyRows | RejectedRecords | None = None


@dataclass(frozen=True)
class PostgresSink(DatabaseSink[PostgresTransaction]):
    """The sink into one table. Spark sends this object to the tasks."""

    options: PostgresOptions
    table: TargetTable

    def begin(self) -> PostgresTransaction:
        """Open a transaction with time limits, whose commit reaches the disk.

        The user may have switched `synchronous_commit` off, but Spark does not send rows again that
        a crash takes.
        """
        connection = connected(self.options.dsn, self.options.timeout_seconds)
        with self._translated_errors():
            refuse_read_only(
                connection,
                f"SET LOCAL lock_timeout = '{self.options.timeout_seconds}s'; "
                f"SET LOCAL idle_in_transaction_session_timeout = '{_IDLE_IN_TRANSACTION}'; "
                "SELECT set_config('synchronous_commit', 'on', true) "
                "WHERE current_setting('synchronous_commit') = 'off'",
            )
        return PostgresTransaction(connection)

    def read_marker(self, transaction: PostgresTransaction, key: str) -> str:
        """Lock a slot, and return its owner and marker.

        If a session keeps the lock for more than a second, it may be frozen, so this ends it, and
        the server rolls its transaction back.
        """
        connection, slot = transaction.connection, _slot_of(key)
        query_id, sink, number = slot
        slots = 0
        with self._translated_errors():
            row = self._locked(connection, slot, "SKIP LOCKED")
            if row is None:
                with self._ending_blockers(connection):
                    # A row that is missing cannot be locked.
                    connection.execute(
                        f"INSERT INTO {self._markers} (query_id, sink, slot, owner) "
                        f"VALUES (%s, %s, %s, '{_NOBODY}') ON CONFLICT DO NOTHING",
                        slot,
                    )
                    row = self._locked(connection, slot)
            if number == BATCH_SLOT:
                [(slots,)] = connection.execute(
                    f"SELECT coalesce(max(slot) + 1, 0) FROM {self._markers} "
                    "WHERE query_id = %s AND sink = %s",
                    (query_id, sink),
                ).fetchall()
        owner, marker = row or (None, None)
        newest = marker and _parsed(str(self.options.markers), key, marker)
        return Stored(owner, newest, slots).to_text()

    def _locked(self, connection: Connection, slot: tuple[str, str, int], how: str = "") -> Any:
        return connection.execute(
            f"SELECT nullif(owner, '{_NOBODY}')::text, marker FROM {self._markers} {_THIS_SLOT} "
            f"FOR UPDATE {how}",
            slot,
        ).fetchone()

    @contextmanager
    def _ending_blockers(self, connection: Connection) -> Iterator[None]:
        pid = connection.execute("SELECT pg_backend_pid()").fetchone()

        def end() -> None:
            # Without its end, the statement fails at its own time limit.
            with suppress(Exception), transaction(self.options) as other:
                # Sessions belong to the user who logged in, not to the role that the user has set.
                other.execute("SET LOCAL ROLE NONE")
                other.execute(_END_BLOCKERS, pid)

        timer = Timer(_PATIENCE_S, end)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

    def write_rows(self, transaction: PostgresTransaction, rows: pa.RecordBatch) -> None:
        with self._translated_errors():
            if transaction.rows is None:
                transaction.rows = self._begin_rows(transaction.connection)
            transaction.rows.send(rows)

    def _begin_rows(self, connection: Connection) -> CopyRows | RejectedRecords:
        """Begin to copy rows to the target, or to a temporary table for `_end_rows` to merge."""
        if not self.options.key and self.options.quarantine is None:
            return CopyRows(connection, self.table, self.table.name)
        connection.execute(
            f"CREATE TEMPORARY TABLE dedup_incoming ON COMMIT DROP AS "
            f"SELECT {self.table.column_list} FROM {self.table.name} WITH NO DATA".encode()
        )
        if self.options.quarantine is None:
            return CopyRows(connection, self.table, _INCOMING)
        return RejectedRecords(connection, self.table, _INCOMING)

    def write_marker(self, transaction: PostgresTransaction, key: str, marker: str) -> None:
        stored = Stored.from_text(marker, key)
        newest = None if stored.marker is None else stored.marker.to_bytes().decode()
        with self._translated_errors():
            if transaction.rows is not None and stored.marker is not None:
                self._end_rows(transaction.connection, transaction.rows, stored.marker)
            transaction.connection.execute(
                f"INSERT INTO {self._markers} (query_id, sink, slot, owner, marker) "
                "VALUES (%s, %s, %s, %s, %s) ON CONFLICT (query_id, sink, slot) "
                "DO UPDATE SET owner = EXCLUDED.owner, marker = EXCLUDED.marker",
                (*_slot_of(key), stored.owner, newest),
            )

    def _end_rows(
        self, connection: Connection, rows: CopyRows | RejectedRecords, marker: Marker
    ) -> None:
        """Wait until the server has all rows, and has checked all constraints on them.

        After an error of the commit itself, the kit could not know what became of the transaction.
        """
        rows.finish()
        if isinstance(rows, RejectedRecords):
            rows.set_aside(str(self.options.quarantine), marker)
        else:
            if self.options.key:
                connection.execute(self.table.merge_from(_INCOMING).encode())
            connection.execute(CHECK)
        self.table.check_unchanged(connection)

    def commit(self, transaction: PostgresTransaction) -> None:
        transaction.connection.commit()
        give_back(self.options.dsn, transaction.connection)

    def rollback(self, transaction: PostgresTransaction) -> None:
        give_back(self.options.dsn, transaction.connection)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Translate the server's errors. A column that changed its type is no fault of a record."""
        try:
            with translated_errors(self.options.table):
                yield
        except DataError:
            here = translated_errors(self.options.table)
            with suppress(SinkError, Aborted), here, transaction(self.options) as other:
                self.table.check_unchanged(other)
            raise


def _slot_of(key: str) -> tuple[str, str, int]:
    query_id, sink, number = key.rsplit("/", 2)
    return query_id, sink, int(number)


def ready(options: PostgresOptions, columns: Sequence[tuple[str, str]]) -> TransactionalWork:
    """Check the tables and the stream's columns, and return the work of the sink.

    `columns` has the name and Spark type of each column of the stream. Creates the sink's own
    tables. Raises ConfigError if a table or column is missing or does not fit. Raises SinkError if
    no server answers.
    """
    answering = answering_server("Start the query again")
    with answering, translated_errors(options.table), transaction(options) as connection:
        refuse_read_only(connection)
        markers = markers_table(connection, options)
        markers = make_own_table(connection, markers, _COLUMNS, MARKERS_KEY)
        quarantine = options.quarantine
        if quarantine is not None:
            quarantine = make_own_table(connection, quarantine, COLUMNS)
        settled = replace(options, markers=markers, quarantine=quarantine)
        table = find_table(connection, settled, columns)
    return database_work(PostgresSink(settled, table), options.dsn)


def read_markers(options: PostgresOptions) -> list[Marker]:
    """Return the newest marker of each slot that a sink has, in any query."""
    sink = options.name
    with translated_errors(options.table), transaction(options) as connection:
        table = markers_table(connection, options)
        if connection.execute("SELECT to_regclass(%s)", [table]).fetchone() == (None,):
            return []
        rows = connection.execute(
            f"SELECT query_id, slot, marker FROM {table.replace('%', '%%')} "
            "WHERE sink = %s AND marker IS NOT NULL",
            [sink],
        )
        return [_parsed(table, f"{query_id}/{sink}/{slot}", text) for query_id, slot, text in rows]


def _parsed(table: str, key: str, text: str) -> Marker:
    return Marker.from_bytes(text.encode(), f"table {table}, {key}")

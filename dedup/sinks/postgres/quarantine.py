"""Move records that the table rejects to a quarantine table.

One transaction publishes the other records and writes to the quarantine table, which has these
columns:

=========  ==========================================================
column     meaning
=========  ==========================================================
query_id   the streaming query
sink       name of the sink within its query
batch_id   micro-batch
reason     why the table rejected the record, in the server's words
record     the record as a JSON object
=========  ==========================================================

The sink writes rows under savepoints. If the table rejects some rows, the sink halves the rows
until it has found every rejected row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dedup.errors import DataError
from dedup.sinks.columns import record_as_json
from dedup.sinks.postgres.connections import psycopg_library, reason_of, translate_error
from dedup.sinks.postgres.copy_rows import CopyRows
from dedup.sinks.postgres.tables import TargetTable, make_own_table

if TYPE_CHECKING:
    import psycopg

#: Largest number of rejected records of one slice. If there are more, the table is probably wrong.
MOST = 1000

_COLUMNS = {
    "query_id": "text", "sink": "text", "batch_id": "bigint", "reason": "text", "record": "text",
}  # fmt: skip
_NAMES = ", ".join(_COLUMNS)
_CHECK = "SET CONSTRAINTS ALL IMMEDIATE"


class RejectedRecords:
    """The rejected records of one slice, each with the reason of the rejection."""

    def __init__(self, table: TargetTable) -> None:
        self._table = table
        self._records: list[tuple[str, str]] = []
        self._moves: list[tuple[str, tuple[str, str] | None]] = []
        self._copied, self._check = 0, ""

    def __len__(self) -> int:
        return len(self._records)

    def copy(self, connection: psycopg.Connection[Any], rows: pa.RecordBatch, into: str) -> None:
        """Copy rows to the table `into`, which has the target's columns but no constraints.

        Raises DataError if more than `MOST` records of the slice are rejected.
        """

        def attempt(part: pa.RecordBatch) -> str | None:
            return self._attempt(connection, lambda: _copy(connection, self._table, part, into))

        waiting = [rows] if rows.num_rows else []
        while waiting:
            part = waiting.pop()
            reason = attempt(part)
            if reason is not None and part.num_rows > 1:
                half = part.num_rows // 2
                waiting += [part.slice(half), part.slice(0, half)]
            elif reason is not None:
                self._add(reason, record_as_json(part))

    def move(
        self, connection: psycopg.Connection[Any], source: str, aside: tuple[str, str] | None = None
    ) -> int:
        """Move rows from the table `source` to the target, and staged rejections to the quarantine.

        `aside` holds the last two arguments of `move_staged`. Returns the number of rejected
        records that `move_staged` has moved. Raises DataError as `copy` does.
        """
        if not self._moves:
            connection.execute("SAVEPOINT before_moves")
            self._copied = len(self._records)
        self._moves.append((source, aside))
        return self._move_all(connection, source, aside)

    def settle(self, connection: psycopg.Connection[Any]) -> None:
        """Find the rows that break deferred constraints, and reject these rows.

        If the server checked the constraints at the commit, its error would not name the rows.
        """
        if self._attempt(connection, lambda: connection.execute(_CHECK.encode())) is None:
            return
        connection.execute("ROLLBACK TO SAVEPOINT before_moves")
        del self._records[self._copied :]
        self._check = f"; {_CHECK}"
        for move in self._moves:
            self._move_all(connection, *move)

    def _move_all(
        self, connection: psycopg.Connection[Any], source: str, aside: tuple[str, str] | None
    ) -> int:
        staged = move_staged(connection, *aside) if aside else 0
        found = connection.execute(
            "SELECT pg_relation_size(%s) / current_setting('block_size')::int", [source]
        ).fetchone()
        assert found is not None
        waiting = [(0, found[0])] if found[0] else []
        while waiting:
            begin, end = waiting.pop()
            blocks = f"WHERE ctid >= '({begin},0)' AND ctid < '({end},0)'"
            if self._move(connection, source, blocks) is None:
                continue
            if end - begin > 1:
                half = (begin + end) // 2
                waiting += [(half, end), (begin, half)]  # keeps the order of the rows
            else:
                self._move_rows(connection, source, blocks)
        return staged

    def _move_rows(self, connection: psycopg.Connection[Any], source: str, blocks: str) -> None:
        places = connection.execute(f"SELECT ctid::text FROM {source} {blocks}".encode())
        for (place,) in places.fetchall():
            one = f"WHERE ctid = '{place}'"
            reason = self._move(connection, source, one)
            if reason is not None:
                row = connection.execute(
                    f"SELECT to_jsonb(one)::text FROM {source} AS one {one}".encode()
                ).fetchone()
                assert row is not None
                self._add(reason, row[0])

    def _move(self, connection: psycopg.Connection[Any], source: str, where: str) -> str | None:
        statement = self._table.merge_from(source, where) + self._check
        return self._attempt(connection, lambda: connection.execute(statement.encode()))

    def set_aside(
        self,
        connection: psycopg.Connection[Any],
        into: str,
        query_id: str,
        sink: str,
        batch_id: int,
    ) -> None:
        records = self._records
        if connection.info.parameter_status("server_encoding") != "UTF8":
            # The table may have rejected a record for a character that the database cannot store.
            records = [(_in_ascii(reason), _in_ascii(record)) for reason, record in records]
        if records:
            into = into.replace("%", "%%")  # psycopg interprets a single %
            with connection.cursor() as cursor:
                cursor.executemany(
                    f"INSERT INTO {into} ({_NAMES}) VALUES (%s, %s, %s, %s, %s)",
                    [(query_id, sink, batch_id, *one) for one in records],
                )

    def _attempt(
        self, connection: psycopg.Connection[Any], act: Callable[[], object]
    ) -> str | None:
        """Call `act` under a savepoint. Return why the table rejects a record, or None."""
        try:
            with connection.transaction():
                act()
        except DataError as error:
            return reason_of(error)
        except psycopg_library().Error as error:
            translated = translate_error(error, self._table.shown)
            if not isinstance(translated, DataError):
                raise
            return reason_of(translated)
        return None

    def _add(self, reason: str, record: str) -> None:
        self._records.append((reason, record))
        if len(self._records) > MOST:
            raise DataError(
                f"Table {self._table.shown} rejects more than {MOST:,} records of one slice, the "
                f"last one because: {reason} Nothing of the slice was written. Fix the table or "
                "the query, and start it again.",
                remedy="rejected-rows",
            )


def _in_ascii(text: str) -> str:
    """Return a text in which each character that is not ASCII is escaped as in JSON."""
    return re.sub(r"[^\x00-\x7f]", lambda one: json.dumps(one[0])[1:-1], text)


def make_quarantine_table(connection: psycopg.Connection[Any], name: str) -> str:
    return make_own_table(connection, name, _COLUMNS)


def make_staged(connection: psycopg.Connection[Any], name: str) -> None:
    columns = ", ".join(f"{column} {kind}" for column, kind in _COLUMNS.items())
    connection.execute(f"CREATE UNLOGGED TABLE {name} ({columns})".encode())


def move_staged(connection: psycopg.Connection[Any], name: str, into: str) -> int:
    """Move the rejected records of a staged slice into the quarantine, and return their number."""
    found = connection.execute("SELECT to_regclass(%s)", [name]).fetchone()
    if found is None or found[0] is None:
        return 0
    statement = f"INSERT INTO {into} ({_NAMES}) SELECT {_NAMES} FROM {name}"
    return connection.execute(statement.encode()).rowcount


def _copy(
    connection: psycopg.Connection[Any], table: TargetTable, rows: pa.RecordBatch, into: str
) -> None:
    copy = CopyRows(connection, table, into, shows_record=False)
    try:
        copy.send(rows)
    except BaseException as error:
        copy.cancel(error)
        raise
    copy.finish()

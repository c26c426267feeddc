"""Records that the table does not take, set aside in the transaction that publishes the others.

=========  ==========================================================
column     meaning
=========  ==========================================================
query_id   the streaming query
sink       name of the sink within its query
batch_id   micro-batch
reason     why the record was not taken, in the server's words
record     the record as a JSON object
=========  ==========================================================

Rows are written under savepoints. Where some are refused, they are halved until those are found
that are refused by themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dedup.errors import DataError
from dedup.sinks.postgres.connections import meaning, psycopg_library, reason_of
from dedup.sinks.postgres.copy_rows import CopyRows
from dedup.sinks.postgres.own_tables import make_own_table
from dedup.sinks.postgres.record_json import record_as_json
from dedup.sinks.postgres.target import TargetTable

if TYPE_CHECKING:
    import psycopg

#: Of one slice: where more are refused, it is not the records that are wrong.
MOST = 1000

_COLUMNS = {
    "query_id": "text", "sink": "text", "batch_id": "bigint", "reason": "text", "record": "text",
}  # fmt: skip

_CHECK = "SET CONSTRAINTS ALL IMMEDIATE"


class Refused:
    """The records of one slice that its table does not take."""

    def __init__(self, table: TargetTable) -> None:
        self._table = table
        self._found: list[tuple[str, str]] = []
        self._moved: list[tuple[str, tuple[str, str] | None]] = []
        self._copied, self._check = 0, ""

    def copy(self, connection: psycopg.Connection[Any], rows: pa.RecordBatch, into: str) -> None:
        """Copy rows to a table that has the target's columns and none of its constraints.

        Parameters
        ----------
        connection : psycopg.Connection
            With an open transaction.
        rows : RecordBatch
        into : str
            The table, as SQL names it.

        Raises
        ------
        DataError
            If more than `MOST` of the slice are refused.
        """
        waiting = [rows] if rows.num_rows else []
        while waiting:
            part = waiting.pop()
            reason = self._attempt(connection, lambda part=part: _copy(  # type: ignore[misc]
                connection, self._table, part, into))  # fmt: skip
            if reason is None:
                continue
            if part.num_rows > 1:
                half = part.num_rows // 2
                waiting += [part.slice(half), part.slice(0, half)]
            else:
                self._add(reason, record_as_json(part))

    def move(
        self, connection: psycopg.Connection[Any], source: str, aside: tuple[str, str] | None = None
    ) -> int:
        """Bring the rows of such a table into the target, and those that wait to the quarantine.

        The parameters and errors are those of `copy`; `aside` are those of `move_staged`, whose
        result is returned.
        """
        if not self._moved:
            connection.execute("SAVEPOINT before_moves")
            self._copied = len(self._found)
        self._moved.append((source, aside))
        return self._move_all(connection, source, aside)

    def settle(self, connection: psycopg.Connection[Any]) -> None:
        """Set aside rows that break deferred constraints; the commit does not name them."""
        if self._attempt(connection, lambda: connection.execute(_CHECK.encode())) is None:
            return
        connection.execute("ROLLBACK TO SAVEPOINT before_moves")
        del self._found[self._copied :]
        self._check = f"; {_CHECK}"
        for moved in self._moved:
            self._move_all(connection, *moved)

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
                waiting += [(half, end), (begin, half)]  # in the order in which they came
                continue
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
        return staged

    def set_aside(
        self,
        connection: psycopg.Connection[Any],
        into: str,
        query_id: str,
        sink: str,
        batch_id: int,
    ) -> None:
        """Write the records to a table of this kind."""
        found = self._found
        if connection.info.parameter_status("server_encoding") != "UTF8":
            # A character that the database does not have may be why the table took no record.
            found = [(_in_ascii(reason), _in_ascii(record)) for reason, record in found]
        if found:
            into = into.replace("%", "%%")  # psycopg fills in what follows a single one
            with connection.cursor() as cursor:
                cursor.executemany(
                    f"INSERT INTO {into} ({_NAMES}) VALUES (%s, %s, %s, %s, %s)",
                    [(query_id, sink, batch_id, *one) for one in found],
                )

    def __len__(self) -> int:
        return len(self._found)

    def _move(self, connection: psycopg.Connection[Any], source: str, where: str) -> str | None:
        statement = self._table.merge_from(source, where) + self._check
        return self._attempt(connection, lambda: connection.execute(statement.encode()))

    def _attempt(
        self, connection: psycopg.Connection[Any], act: Callable[[], object]
    ) -> str | None:
        """Act under a savepoint; return why records are refused, None if they are not."""
        try:
            with connection.transaction():
                act()
        except DataError as error:
            return reason_of(error)
        except psycopg_library().Error as error:
            found = meaning(error, self._table.shown)
            if not isinstance(found, DataError):
                raise
            return reason_of(found)
        return None

    def _add(self, reason: str, record: str) -> None:
        self._found.append((reason, record))
        if len(self._found) > MOST:
            raise DataError(
                f"Table {self._table.shown} does not take more than {MOST:,} records of one slice, "
                f"the last one because: {reason} Nothing of the slice was written. Mend the table "
                "or the query, and start it again.",
                remedy="postgres-rows",
            )


def _in_ascii(text: str) -> str:
    """Return a text with other characters escaped as in JSON; its numbers stay unchanged."""
    return re.sub(r"[^\x00-\x7f]", lambda one: json.dumps(one[0])[1:-1], text)


def make_quarantine_table(connection: psycopg.Connection[Any], name: str) -> str:
    """Make a table of this kind, unless it is there; return its name with its schema."""
    return make_own_table(connection, "quarantine", name, _COLUMNS)


def make_staged(connection: psycopg.Connection[Any], name: str) -> None:
    """Make a table of this kind for records that wait."""
    connection.execute(f"CREATE UNLOGGED TABLE {name} ({_DEFINED})".encode())


def move_staged(connection: psycopg.Connection[Any], name: str, into: str) -> int:
    """Bring the records that wait, if there are any, to a table of this kind; return how many."""
    found = connection.execute("SELECT to_regclass(%s)", [name]).fetchone()
    if found is None or found[0] is None:
        return 0
    moved = connection.execute(
        f"INSERT INTO {into} ({_NAMES}) SELECT {_NAMES} FROM {name}".encode()
    )
    return moved.rowcount


_NAMES = ", ".join(_COLUMNS)
_DEFINED = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())


def _copy(
    connection: psycopg.Connection[Any], table: TargetTable, rows: pa.RecordBatch, into: str
) -> None:
    copy = CopyRows(connection, table, into, is_told=False)
    try:
        copy.send(rows)
    except BaseException as error:
        copy.give_up(error)
        raise
    copy.finish()

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
from functools import partial

import pyarrow as pa

from dedup.errors import DataError
from dedup.sinks.columns import record_as_json
from dedup.sinks.marker import Marker
from dedup.sinks.postgres.connections import Connection, reason_of, translated_errors
from dedup.sinks.postgres.copy_rows import CopyRows
from dedup.sinks.postgres.tables import TargetTable

#: Largest number of rejected records of one transaction. If there are more, the table is probably
#: wrong.
MOST = 1000

COLUMNS = {
    "query_id": "text", "sink": "text", "batch_id": "bigint", "reason": "text", "record": "text",
}  # fmt: skip
#: Checks deferred constraints now, and all others that follow at once.
CHECK = b"SET CONSTRAINTS ALL IMMEDIATE"


class RejectedRecords:
    """The rejected records of one transaction, each with the reason of the rejection.

    Rows go first to the table `source`, which has the target's columns but no constraints, and then
    to the target `table`.
    """

    def __init__(self, connection: Connection, table: TargetTable, source: str) -> None:
        self._connection, self._table, self._source = connection, table, source
        self._records: list[tuple[str, str]] = []

    def send(self, rows: pa.RecordBatch) -> None:
        """Copy rows to the source. Raises DataError if more than `MOST` records are rejected."""
        waiting = [rows] if rows.num_rows else []
        while waiting:
            part = waiting.pop()
            reason = self._attempt(partial(self._copy, part))
            if reason is not None and part.num_rows > 1:
                half = part.num_rows // 2
                waiting += [part.slice(half), part.slice(0, half)]
            elif reason is not None:
                self._add(reason, record_as_json(part))

    def _copy(self, rows: pa.RecordBatch) -> None:
        copy = CopyRows(self._connection, self._table, self._source, shows_record=False)
        try:
            copy.send(rows)
        except BaseException as error:
            copy.cancel(error)
            raise
        copy.finish()

    def finish(self) -> None:
        """Move the rows from the source to the target. Raises DataError as `send` does.

        If some rows break deferred constraints, the error does not name the rows. Then this moves
        all rows again, and checks the constraints after each part.
        """
        copied = len(self._records)
        if self._attempt(self._move_all) is not None:
            del self._records[copied:]
            self._move_all(f"; {CHECK.decode()}")

    def _move_all(self, check: str = "") -> None:
        [(count,)] = self._connection.execute(
            "SELECT pg_relation_size(%s) / current_setting('block_size')::int", [self._source]
        ).fetchall()
        waiting = [(0, count)] if count else []
        while waiting:
            begin, end = waiting.pop()
            blocks = f"WHERE ctid >= '({begin},0)' AND ctid < '({end},0)'"
            if self._move(blocks, check) is None:
                continue
            if end - begin > 1:
                half = (begin + end) // 2
                waiting += [(half, end), (begin, half)]  # keeps the order of the rows
            else:
                self._move_rows(blocks, check)
        self._connection.execute(CHECK)

    def _move_rows(self, blocks: str, check: str) -> None:
        places = self._connection.execute(
            f"SELECT ctid::text FROM {self._source} {blocks}".encode()
        )
        for (place,) in places.fetchall():
            one = f"WHERE ctid = '{place}'"
            reason = self._move(one, check)
            if reason is not None:
                [(record,)] = self._connection.execute(
                    f"SELECT to_jsonb(one)::text FROM {self._source} AS one {one}".encode()
                ).fetchall()
                self._add(reason, record)

    def _move(self, where: str, check: str) -> str | None:
        statement = self._table.merge_from(self._source, where) + check
        return self._attempt(partial(self._connection.execute, statement.encode()))

    def set_aside(self, into: str, marker: Marker) -> None:
        """Write the rejected records of the marker's micro-batch to the quarantine table `into`."""
        records = self._records
        if self._connection.info.parameter_status("server_encoding") != "UTF8":
            # The table may have rejected a record for a character that the database cannot store.
            records = [(_in_ascii(reason), _in_ascii(record)) for reason, record in records]
        if records:
            into = into.replace("%", "%%")  # psycopg interprets a single %
            with self._connection.cursor() as cursor:
                cursor.executemany(
                    f"INSERT INTO {into} ({', '.join(COLUMNS)}) VALUES (%s, %s, %s, %s, %s)",
                    [(marker.query_id, marker.sink, marker.batch_id, *one) for one in records],
                )

    def _attempt(self, act: Callable[[], object]) -> str | None:
        """Call `act` under a savepoint. Return why the table rejects a record, or None."""
        try:
            with translated_errors(self._table.options.table), self._connection.transaction():
                act()
        except DataError as error:
            return reason_of(error)
        return None

    def _add(self, reason: str, record: str) -> None:
        self._records.append((reason, record))
        if len(self._records) > MOST:
            raise DataError(
                f"Table {self._table.options.table} rejects more than {MOST:,} records of one "
                f"transaction, the last one because: {reason} Nothing of it was written. Fix the "
                "table or the query, and start it again.",
                remedy="rejected-rows",
            )


def _in_ascii(text: str) -> str:
    return re.sub(r"[^\x00-\x7f]", lambda one: json.dumps(one[0])[1:-1], text)

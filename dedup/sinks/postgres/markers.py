"""The table of markers, which says who owns each slot of a sink and what it published last.

=========  ======================================================================
column     meaning
=========  ======================================================================
query_id   ID of the checkpoint's query
sink       name of the sink within its query
slot       number of the task, -1 for whole micro-batches
owner      ID of the slot's owner (a new ID each time somebody acquires the slot)
marker     JSON with a checksum (`dedup.sinks.marker`), NULL before the first marker
=========  ======================================================================

A transaction that publishes rows first locks the row of its slot in this table. To acquire the
slot, a new owner has to wait for that lock. So once it has the slot, the transactions of earlier
owners have ended. If an earlier owner begins another transaction, the sink rejects that
transaction.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dedup.sinks.marker import Marker
from dedup.sinks.postgres.connections import psycopg_library, transaction, translated_errors
from dedup.sinks.postgres.options import PostgresOptions
from dedup.sinks.postgres.tables import make_own_table

if TYPE_CHECKING:
    import psycopg

_COLUMNS = {
    "query_id": "text", "sink": "text", "slot": "integer", "owner": "uuid NOT NULL",
    "marker": "text",
}  # fmt: skip
#: Milliseconds that an earlier owner may take to end its transaction.
_PATIENCE_MS = 1000
#: Time after which the server ends a session that is idle in a transaction, and may block others.
_IDLE_IN_TRANSACTION = "10min"
#: Stands for the slot number in the name of a session that acquires slots.
_OWNING = "owning"


class PostgresMarkers:
    """The markers of one sink of one query."""

    def __init__(self, options: PostgresOptions, query_id: str) -> None:
        assert options.markers is not None, "settled on the driver"
        self._options, self._query_id = options, query_id
        self._table = options.markers
        self._sql = self._table.replace("%", "%%")  # psycopg interprets a single %
        self._where = "query_id = %s AND sink = %s"
        self._mine = (query_id, options.name)

    def slots(self) -> list[int]:
        with transaction(self._options) as connection:
            rows = connection.execute(
                f"SELECT slot FROM {self._sql} WHERE {self._where}", self._mine
            ).fetchall()
        return [row[0] for row in rows]

    def acquire(self, slots: Sequence[int]) -> tuple[str, dict[int, Marker | None]]:
        """Acquire slots in the given order. Return the new owner's ID, and each slot's marker.

        A session that has locked one of the slots gets a second to end its transaction. Then this
        disconnects the session, and the server rolls the transaction back. Raises Aborted if a slot
        is still locked, or if the server cannot be reached.
        """
        owner = str(uuid.uuid4())
        with translated_errors(self._table):
            try:
                return owner, self._own(slots, owner, _PATIENCE_MS)
            except psycopg_library().errors.LockNotAvailable:
                self._disconnect(slots)
            return owner, self._own(slots, owner, self._options.timeout_seconds * 1000)

    def _own(self, slots: Sequence[int], owner: str, wait_ms: int) -> dict[int, Marker | None]:
        found: dict[int, Marker | None] = {}
        with transaction(self._options) as connection:
            self._announce(connection, _OWNING, wait_ms)
            for slot in slots:
                row = connection.execute(
                    f"INSERT INTO {self._sql} AS present (query_id, sink, slot, owner) "
                    "VALUES (%s, %s, %s, %s) ON CONFLICT (query_id, sink, slot) "
                    "DO UPDATE SET owner = EXCLUDED.owner RETURNING present.marker",
                    (*self._mine, slot, owner),
                ).fetchone()
                assert row is not None
                found[slot] = row[0] and _parsed(self._table, self._query_id, slot, row[0])
        return found

    def lock(
        self, connection: psycopg.Connection[Any], slot: int
    ) -> tuple[str | None, Marker | None]:
        """Lock a slot until the transaction ends, and return its owner and newest marker."""
        self._announce(connection, slot, self._options.timeout_seconds * 1000)
        row = connection.execute(
            f"SELECT owner::text, marker FROM {self._sql} "
            f"WHERE {self._where} AND slot = %s FOR UPDATE",
            (*self._mine, slot),
        ).fetchone()
        owner, text = row or (None, None)
        return owner, text and _parsed(self._table, self._query_id, slot, text)

    def put(self, connection: psycopg.Connection[Any], owner: str, marker: Marker) -> bool:
        """Write a marker if `owner` still owns the slot, and return whether it does."""
        done = connection.execute(
            f"UPDATE {self._sql} SET marker = %s WHERE {self._where} AND slot = %s AND owner = %s",
            (marker.to_bytes().decode(), *self._mine, marker.slot, owner),
        )
        return done.rowcount == 1

    def _disconnect(self, slots: Sequence[int]) -> None:
        """End the sessions that lock one of the slots. The server rolls back their transactions."""
        with transaction(self._options) as connection:
            # Sessions belong to the user who logged in, not to the role that the user has set.
            connection.execute("SET LOCAL ROLE NONE")
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = ANY(%s) AND datname = current_database() "
                "AND usename = current_user AND pid <> pg_backend_pid()",
                ([self._session(_OWNING), *map(self._session, slots)],),
            )

    def _announce(self, connection: psycopg.Connection[Any], slot: int | str, wait_ms: int) -> None:
        """Name the session after the slot, so that a new owner can disconnect it. Set time limits.

        If the user has switched `synchronous_commit` off, switch it on. The commit must reach the
        disk, because Spark does not send the rows again.
        """
        connection.execute(
            f"SET LOCAL lock_timeout = {wait_ms}; "
            f"SET LOCAL application_name = '{self._session(slot)}'; "
            f"SET LOCAL idle_in_transaction_session_timeout = '{_IDLE_IN_TRANSACTION}'; "
            "SELECT set_config('synchronous_commit', 'on', true) "
            "WHERE current_setting('synchronous_commit') = 'off'"
        )

    def _session(self, slot: int | str) -> str:
        which = hashlib.blake2b("\0".join(self._mine).encode(), digest_size=12).hexdigest()
        return f"dedup {which} {slot}"


def read_markers(connection: psycopg.Connection[Any], table: str, sink: str) -> list[Marker]:
    """Return the newest marker of each slot that a sink has, in any query.

    The result is empty if the table is missing.
    """
    if connection.execute("SELECT to_regclass(%s)", [table]).fetchone() == (None,):
        return []
    rows = connection.execute(
        f"SELECT query_id, slot, marker FROM {table.replace('%', '%%')} "
        "WHERE sink = %s AND marker IS NOT NULL",
        [sink],
    )
    return [_parsed(table, query_id, slot, text) for query_id, slot, text in rows]


def _parsed(table: str, query_id: str, slot: int, text: str) -> Marker:
    return Marker.from_bytes(text.encode(), f"table {table}, query {query_id}, slot {slot}")


def make_marker_table(options: PostgresOptions, name: str) -> str:
    with translated_errors(name), transaction(options) as connection:
        key = ["query_id", "sink", "slot"]
        return make_own_table(connection, name, _COLUMNS, key)

"""The slots of a PostgreSQL sink. A slot is a row in the table of markers.

One transaction publishes a slice. First it locks the row of its slot, which shows whether this
attempt still owns the slot. Then it writes the slice's rows, writes the marker to the slot's row,
and commits. Readers see all of the slice or nothing. The transaction cannot commit after another
attempt has acquired the slot.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dedup.errors import faults
from dedup.sinks.content import Content, content_of
from dedup.sinks.marker import Marker
from dedup.sinks.owned_slot import OwnedSlot, Ownership
from dedup.sinks.postgres.connections import (
    connected,
    give_back,
    is_commit_unknown,
    psycopg_library,
    translate_error,
    translated_errors,
)
from dedup.sinks.postgres.copy_rows import CopyRows
from dedup.sinks.postgres.markers import PostgresMarkers
from dedup.sinks.postgres.options import PostgresOptions
from dedup.sinks.postgres.quarantine import RejectedRecords
from dedup.sinks.postgres.staging import rejected_of
from dedup.sinks.postgres.tables import TargetTable
from dedup.sinks.protocol import Indefinite, StagedSlice
from dedup.sinks.slot_work import SlotRows, SlotSink

if TYPE_CHECKING:
    import psycopg

_INCOMING = "pg_temp.dedup_incoming"


class PostgresSlot(OwnedSlot):
    """One slot of the sink. Implements `dedup.sinks.protocol.SlotPort`."""

    room = "postgres"

    def __init__(
        self, options: PostgresOptions, table: TargetTable, query_id: str, number: int
    ) -> None:
        key = (options.dsn, options.markers, query_id, options.name, number)
        super().__init__(key, number, accept_lost_markers=options.accept_lost_markers)
        self._options, self._table = options, table
        self._markers = PostgresMarkers(options, query_id)
        self._connection: psycopg.Connection[Any] | None = None
        self._copy: CopyRows | None = None
        self._rejected: RejectedRecords | None = None

    def _acquire(self) -> Ownership:
        owner, newest = self._markers.acquire([self.number])
        return owner, newest[self.number]

    def _begin(self) -> Ownership:
        self._connection = connected(self._options.dsn, self._options.timeout_seconds)
        with self._translated_errors():
            return self._markers.lock(self._connection, self.number)

    def send(self, rows: pa.RecordBatch) -> None:
        with self._translated_errors():
            if self._copy is None and self._rejected is None:
                self._begin_rows()
            if self._rejected is not None:
                self._rejected.copy(self._open(), rows, _INCOMING)
            elif self._copy is not None:
                self._copy.send(rows)

    def _begin_rows(self) -> None:
        """Begin to copy rows to the target, or to a temporary table that `flush` merges into it."""
        into = self._table.name
        if self._table.key or self._options.quarantine:
            into = _INCOMING
            self._open().execute(
                f"CREATE TEMPORARY TABLE dedup_incoming ON COMMIT DROP AS "
                f"SELECT {self._table.column_list} FROM {self._table.name} WITH NO DATA".encode()
            )
        if self._options.quarantine:
            self._rejected = RejectedRecords(self._table)
        else:
            self._copy = CopyRows(self._open(), self._table, into)

    def flush(self) -> None:
        with self._translated_errors():
            if self._rejected is not None:
                self._rejected.move(self._open(), _INCOMING)
            elif self._copy is not None:
                copy, self._copy = self._copy, None
                copy.finish()
                if self._table.key:
                    self._open().execute(self._table.merge_from(_INCOMING).encode())
            else:
                return
            self._table.check_types(self._open())

    def take(self, staged: str) -> int:
        """Move the rows of a staged slice within the open transaction, and return their number."""
        with self._translated_errors():
            found = self._open().execute(f"SELECT count(*) FROM {staged}".encode()).fetchone()
            assert found is not None
            rows = int(found[0])
            if self._options.quarantine:
                self._rejected = self._rejected or RejectedRecords(self._table)
                aside = rejected_of(staged), self._options.quarantine
                rows += self._rejected.move(self._open(), staged, aside)
            else:
                self._open().execute(self._table.merge_from(staged).encode())
            self._table.check_types(self._open())
        return rows

    def _write(self, marker: Marker) -> None:
        with self._translated_errors():
            if self._rejected is not None and self._options.quarantine:
                self._rejected.settle(self._open())
                self._rejected.set_aside(
                    self._open(), self._options.quarantine,
                    marker.query_id, marker.sink, marker.batch_id,
                )  # fmt: skip
            if not self._markers.put(self._open(), self.owner, marker):
                raise self._fenced()

    def _commit(self) -> None:
        connection = self._open()
        try:
            connection.commit()
        except psycopg_library().Error as error:
            is_lost = connection.closed or connection.broken or is_commit_unknown(error)
            self.abort()
            if is_lost:
                raise Indefinite(f"the connection was lost in a commit: {error}") from None
            raise translate_error(error, self._table.shown) from None
        self.abort()  # gives the connection back

    def abort(self) -> None:
        connection, self._connection = self._connection, None
        self._copy, self._rejected = None, None
        if connection is not None:
            give_back(self._options.dsn, connection)

    def _open(self) -> psycopg.Connection[Any]:
        assert self._connection is not None, "a transaction is open"
        return self._connection

    def _translated_errors(self) -> AbstractContextManager[None]:
        return translated_errors(self._table.shown)


class PostgresTaskRows(SlotRows):
    """The rows that a task gets from Spark. Implements `dedup.sinks.protocol.SliceRows`."""

    def send_first(self, slot: PostgresSlot) -> None:
        """Send nothing. The open transaction already shows that this attempt owns the slot."""

    def send_rest(self, slot: PostgresSlot) -> Content:
        content = Content()
        for batch in self.rows:
            slot.send(batch)
            content += content_of(batch)
        slot.flush()
        faults.point("postgres.rows.sent")
        return content


class PostgresRows:
    """Rows of staged slices. Implements `dedup.sinks.protocol.RowsToSend`."""

    def __init__(self, slices: Sequence[StagedSlice]) -> None:
        self._slices = slices

    def send_first(self, slot: PostgresSlot) -> None:
        """Send nothing, as in `PostgresTaskRows`."""

    def send_rest(self, slot: PostgresSlot) -> Content:
        content = Content()
        for piece in self._slices:
            if piece.file and slot.take(piece.file) != piece.content.rows:
                return Content(-1)  # the server crashed and emptied an unlogged table
            content += piece.content
        faults.point("postgres.rows.moved")
        return content


class PostgresSink(SlotSink[PostgresSlot]):
    """A handle with which the driver uses all slots of a PostgreSQL sink."""

    def __init__(self, options: PostgresOptions, table: TargetTable, query_id: str) -> None:
        super().__init__(partial(PostgresSlot, options, table, query_id))
        self._table, self._markers = table, PostgresMarkers(options, query_id)

    def slots(self) -> Collection[int]:
        with translated_errors(self._table.shown):
            return self._markers.slots()

    def acquire(self, slots: Sequence[int]) -> Mapping[int, Marker]:
        faults.point("postgres.own.before")
        owner, newest = self._markers.acquire(slots)
        faults.point("postgres.own.after")
        for number, marker in newest.items():
            self.slot(number).know(owner, marker)
        return {number: marker for number, marker in newest.items() if marker is not None}

    def rows(self, slices: Sequence[StagedSlice]) -> PostgresRows:
        return PostgresRows(slices)

"""Record batches into a table by ``COPY ... FROM STDIN (FORMAT BINARY)``."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dedup.errors import DataError
from dedup.sinks.postgres.connections import (
    copied_line,
    meaning,
    psycopg_library,
    reason_of,
    record_refused,
)
from dedup.sinks.postgres.record_json import record_as_json
from dedup.sinks.postgres.target import TargetTable

if TYPE_CHECKING:
    import psycopg

#: Bytes and rows that are encoded at a time.
_BYTES, _ROWS = 4 << 20, 16_384
#: Bytes of sent rows that are kept to name a record: the server refuses one when all are sent.
_KEPT_BYTES = 32 << 20
#: Characters of a record that an error shows.
_SHOWN = 500


class CopyRows:
    """A COPY under way.

    Parameters
    ----------
    connection : psycopg.Connection
    table : TargetTable
        For the columns.
    into : str
        The table that takes the rows, as SQL names it.
    is_told : bool, optional
        Whether an error for a record shows it.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        table: TargetTable,
        into: str,
        *,
        is_told: bool = True,
    ) -> None:
        self._table, self._is_told = table, is_told
        self._kept: deque[pa.RecordBatch] = deque()
        self._kept_bytes = self._lines = 0
        self._cursor = connection.cursor()
        command = f"COPY {into} ({table.column_list}) FROM STDIN (FORMAT BINARY)"
        self._context = self._cursor.copy(command.encode())
        self._copy = self._context.__enter__()
        self._encoder: Any = None

    def send(self, rows: pa.RecordBatch) -> None:
        """Send rows; what is wrong with them may come out later.

        Raises
        ------
        DataError
            For a record that has no place in the table.
        """
        import pgpq

        for part in _parts(rows):
            encoded = self._encoded(part)
            if self._encoder is None:
                self._encoder = pgpq.ArrowToPostgresBinaryEncoder(encoded.schema)
                self._write(self._encoder.write_header())
            self._keep(part)
            self._write(self._encoder.write_batch(encoded))

    def finish(self) -> None:
        """Send the end, and wait until the server has taken all rows.

        Raises
        ------
        DataError
            For a record that the table does not take.
        """
        with self._explained():
            if self._encoder is not None:
                self._copy.write(self._encoder.finish())
            else:  # an empty file is none to the server
                self._copy.write(_HEADER + _TRAILER)
            self._context.__exit__(None, None, None)
        self._cursor.close()

    def give_up(self, error: BaseException) -> None:
        """End a COPY whose rows are not to be taken."""
        self._context.__exit__(type(error), error, error.__traceback__)
        self._cursor.close()

    def _write(self, data: bytes) -> None:
        with self._explained():
            self._copy.write(data)

    def _encoded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        try:
            return self._table.encoded(rows)
        except DataError as error:
            if not self._is_told:
                raise
            raise _refused(reason_of(error), self._first_without_place(rows)) from None

    def _first_without_place(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the first of rows that cannot all be encoded."""
        while rows.num_rows > 1:
            half = rows.slice(0, rows.num_rows // 2)
            try:
                self._table.encoded(half)
            except DataError:
                rows = half
            else:
                rows = rows.slice(half.num_rows)
        return rows

    def _keep(self, rows: pa.RecordBatch) -> None:
        self._lines += rows.num_rows
        if not self._is_told:
            return
        self._kept.append(rows)
        self._kept_bytes += rows.nbytes
        while self._kept_bytes > _KEPT_BYTES:
            self._kept_bytes -= self._kept.popleft().nbytes

    def _at(self, line: int) -> pa.RecordBatch | None:
        """Return the record that was sent as this line, from 1 on, where it is still kept."""
        end = self._lines
        for rows in reversed(self._kept):
            if end - rows.num_rows < line <= end:
                return rows.slice(line - 1 - (end - rows.num_rows), 1)
            end -= rows.num_rows
        return None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Add to the error for a record what it is, where the server says no more than its line."""
        try:
            yield
        except psycopg_library().Error as error:
            found = meaning(error, self._table.shown)
            line = copied_line(error)
            record = self._at(line) if line and not error.diag.message_detail else None
            if isinstance(found, DataError) and record is not None:
                found = _refused(reason_of(found), record)
            raise found from None


#: Of an empty file: signature, no flags, no extension; then the end.
_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"


def _refused(reason: str, record: pa.RecordBatch) -> DataError:
    text = record_as_json(record)
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return record_refused(f"{reason} The record is {shown}.")


def _parts(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if not rows.num_rows:
        return
    row_bytes = max(1, rows.nbytes // rows.num_rows)
    step = max(1, min(_ROWS, _BYTES // row_bytes))
    for begin in range(0, rows.num_rows, step):
        yield rows.slice(begin, step)

"""Write record batches to a table with ``COPY ... FROM STDIN (FORMAT BINARY)``."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from dedup.errors import DataError
from dedup.sinks.kit.database import converted, parts, with_record
from dedup.sinks.postgres.connections import (
    Connection,
    copied_line,
    psycopg_library,
    translate_error,
)
from dedup.sinks.postgres.tables import TargetTable

#: Largest number of bytes and of rows that `CopyRows` encodes at a time.
_BYTES, _ROWS = 4 << 20, 16_384
#: How many bytes of sent rows `CopyRows` keeps in memory. The server may reject a record only at
#: the end of the COPY, and the error should show that record.
_KEPT_BYTES = 32 << 20
#: An empty COPY file: a signature, no flags, no extension, and the end of the file.
_EMPTY = b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"\xff\xff"


class CopyRows:
    """A COPY in progress. It writes to `into`, a table with the columns of the target `table`.

    An error about a record shows the record, unless `shows_record` is false.
    """

    def __init__(
        self, connection: Connection, table: TargetTable, into: str, *, shows_record: bool = True
    ) -> None:
        self._table, self._shows_record = table, shows_record
        self._kept: deque[pa.RecordBatch] = deque()
        self._kept_bytes = self._lines = 0
        self._cursor = connection.cursor()
        command = f"COPY {into} ({table.column_list}) FROM STDIN (FORMAT BINARY)"
        self._context = self._cursor.copy(command.encode())
        self._copy = self._context.__enter__()
        self._encoder: Any = None

    def send(self, rows: pa.RecordBatch) -> None:
        """Send rows, or raise DataError if the sink cannot encode a record.

        The server may report problems with the sent rows later.
        """
        import pgpq

        for part in parts(rows, _ROWS, _BYTES):
            encoded = (
                converted(part, self._table.encoded)
                if self._shows_record
                else self._table.encoded(part)
            )
            if self._encoder is None:
                self._encoder = pgpq.ArrowToPostgresBinaryEncoder(encoded.schema)
                self._write(self._encoder.write_header())
            self._keep(part)
            self._write(self._encoder.write_batch(encoded))

    def finish(self) -> None:
        """Wait until the server accepts all rows, or raise DataError if it rejects a record."""
        with self._translated_errors():
            self._copy.write(self._encoder.finish() if self._encoder is not None else _EMPTY)
            self._context.__exit__(None, None, None)
        self._cursor.close()

    def cancel(self, error: BaseException) -> None:
        self._context.__exit__(type(error), error, error.__traceback__)
        self._cursor.close()

    def _write(self, data: bytes) -> None:
        with self._translated_errors():
            self._copy.write(data)

    def _keep(self, rows: pa.RecordBatch) -> None:
        self._lines += rows.num_rows
        if self._shows_record:
            self._kept.append(rows)
            self._kept_bytes += rows.nbytes
        while self._kept_bytes > _KEPT_BYTES:
            self._kept_bytes -= self._kept.popleft().nbytes

    def _record_at(self, line: int) -> pa.RecordBatch | None:
        """Return the record that was sent as line `line`, or None if it is no longer in memory.

        The first line is 1.
        """
        end = self._lines
        for rows in reversed(self._kept):
            if end - rows.num_rows < line <= end:
                return rows.slice(line - 1 - (end - rows.num_rows), 1)
            end -= rows.num_rows
        return None

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Translate psycopg's errors. If the server reports only a line number, add the record."""
        try:
            yield
        except psycopg_library().Error as error:
            translated = translate_error(error, self._table.options.table)
            line = copied_line(error)
            record = self._record_at(line) if line and not error.diag.message_detail else None
            if isinstance(translated, DataError) and record is not None:
                translated = with_record(translated, record)
            raise translated from None

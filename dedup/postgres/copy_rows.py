"""Record batches into a table by ``COPY ... FROM STDIN (FORMAT BINARY)``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dedup.postgres.target_table import TargetTable

if TYPE_CHECKING:
    import psycopg

#: Bytes and rows that are encoded at a time.
_BYTES, _ROWS = 4 << 20, 16_384


class CopyRows:
    """A COPY under way.

    Parameters
    ----------
    connection : psycopg.Connection
    table : TargetTable
        For the columns.
    into : str
        The table that takes the rows, as SQL names it.
    """

    def __init__(self, connection: psycopg.Connection[Any], table: TargetTable, into: str) -> None:
        self._table = table
        self._cursor = connection.cursor()
        command = f"COPY {into} ({table.column_list}) FROM STDIN (FORMAT BINARY)"
        self._context = self._cursor.copy(command.encode())
        self._copy = self._context.__enter__()
        self._encoder: Any = None

    def send(self, rows: pa.RecordBatch) -> None:
        """Send rows; what is wrong with them may come out later."""
        import pgpq

        for part in _parts(rows):
            encoded = self._table.encoded(part)
            if self._encoder is None:
                self._encoder = pgpq.ArrowToPostgresBinaryEncoder(encoded.schema)
                self._copy.write(self._encoder.write_header())
            self._copy.write(self._encoder.write_batch(encoded))

    def finish(self) -> None:
        """Send the end, and wait until the server has taken all rows."""
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


#: Of an empty file: signature, no flags, no extension; then the end.
_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"


def _parts(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield rows a bounded number of bytes at a time."""
    if not rows.num_rows:
        return
    row_bytes = max(1, rows.nbytes // rows.num_rows)
    step = max(1, min(_ROWS, _BYTES // row_bytes))
    for begin in range(0, rows.num_rows, step):
        yield rows.slice(begin, step)

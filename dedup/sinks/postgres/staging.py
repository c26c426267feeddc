"""Stage slices in tables. Each slice has its own table.

A staging table has the target's column types but no constraints. It is unlogged, so it is empty
after a crash of the server. The transaction that publishes the rows therefore counts them. The name
of a staging table contains the sink, the micro-batch and a random part.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable
from contextlib import suppress

import pyarrow as pa

from dedup.sinks.content import Content, content_of
from dedup.sinks.postgres.columns import quoted
from dedup.sinks.postgres.connections import psycopg_library, transaction, translated_errors
from dedup.sinks.postgres.copy_rows import CopyRows
from dedup.sinks.postgres.options import PostgresOptions
from dedup.sinks.postgres.quarantine import RejectedRecords, make_staged
from dedup.sinks.postgres.tables import TargetTable
from dedup.sinks.protocol import StagedSlice

#: How long `clean` waits for a staging table that another session still writes to.
_DROP_WAIT = "200ms"


def rejected_of(staged: str) -> str:
    return f'{staged[:-1]}q"'


class PostgresStaging:
    """The staged slices of one sink of one query."""

    def __init__(self, options: PostgresOptions, table: TargetTable, query_id: str) -> None:
        self._options, self._table, self._query_id = options, table, query_id
        self._schema = options.staging_schema or table.schema
        sink = hashlib.blake2b(f"{query_id}\0{options.name}".encode(), digest_size=8)
        self._prefix = f"dedup_{sink.hexdigest()}_"

    def write(self, batch_id: int, slot: int, rows: Iterable[pa.RecordBatch]) -> StagedSlice:
        name = f"{self._schema}.{quoted(f'{self._prefix}{batch_id}_{slot}_{uuid.uuid4().hex[:8]}')}"
        content = Content()
        is_made = False
        with translated_errors(self._table.shown), transaction(self._options) as connection:
            rejected = RejectedRecords(self._table)
            copy = None
            for batch in rows:
                if not is_made:
                    connection.execute(
                        f"CREATE UNLOGGED TABLE {name} AS SELECT {self._table.column_list} "
                        f"FROM {self._table.name} WITH NO DATA".encode()
                    )
                    is_made = True
                    if not self._options.quarantine:
                        copy = CopyRows(connection, self._table, name)
                if copy is not None:
                    copy.send(batch)
                else:
                    rejected.copy(connection, batch, name)
                content += content_of(batch)
            if copy is not None:
                copy.finish()
            if len(rejected):
                aside = rejected_of(name)
                make_staged(connection, aside)
                rejected.set_aside(connection, aside, self._query_id, self._options.name, batch_id)
            if is_made:
                self._table.check_types(connection)
        return StagedSlice(slot, content, name if is_made else "")

    def clean(self, batch_id: int) -> None:
        """Drop the staging tables of a published micro-batch and of all earlier micro-batches.

        If an old attempt still writes to a table, the table stays until the next call.
        """
        with suppress(psycopg_library().Error):
            with transaction(self._options) as connection:
                found = connection.execute(
                    "SELECT relname FROM pg_class WHERE relkind = 'r' "
                    "AND starts_with(relname, %s) AND relnamespace = to_regnamespace(%s)",
                    (self._prefix, self._schema),
                ).fetchall()
            for (name,) in found:
                number = name.removeprefix(self._prefix).split("_")[0]
                if number.isdecimal() and int(number) <= batch_id:
                    with suppress(psycopg_library().Error), transaction(self._options) as one:
                        one.execute(f"SET LOCAL lock_timeout = '{_DROP_WAIT}'")
                        one.execute(f"DROP TABLE IF EXISTS {self._schema}.{quoted(name)}")

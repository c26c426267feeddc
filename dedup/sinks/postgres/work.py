"""The sink as Spark runs it: what each task does with its rows, and then the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dedup.errors import ConfigError, SinkError, faults
from dedup.sinks.ledger import Ledger
from dedup.sinks.postgres.connections import transaction, translated_errors
from dedup.sinks.postgres.markers import make_marker_table
from dedup.sinks.postgres.options import ATOMIC, PostgresOptions
from dedup.sinks.postgres.quarantine import make_quarantine_table
from dedup.sinks.postgres.slots import PostgresSink, PostgresSlot, PostgresTaskRows
from dedup.sinks.postgres.staging import PostgresStaging
from dedup.sinks.postgres.tables import TargetTable, find_table
from dedup.sinks.protocol import (
    Aborted,
    Batch,
    Fenced,
    PublishedSlice,
    StagedSlice,
    publish_slice,
    publish_staged,
)
from dedup.sinks.work import SinkWork, TaskResult

if TYPE_CHECKING:
    import psycopg


@dataclass(frozen=True)
class PostgresWork(SinkWork):
    """The work of a PostgreSQL sink; `ready` makes it."""

    options: PostgresOptions
    table: TargetTable
    room = "postgres"

    def write(self, batch: Batch, slot: int, rows: Iterable[pa.RecordBatch]) -> TaskResult:
        """Publish or stage the rows of a task."""
        faults.point("postgres.task.begin")
        staging = PostgresStaging(self.options, self.table, batch.query_id)
        slot_rows = PostgresTaskRows(rows, staging, batch.batch_id, slot)
        holder = PostgresSlot(self.options, self.table, batch.query_id, slot)
        try:
            if self.options.mode == ATOMIC:
                return TaskResult(batch, slot_rows.stage())
            return TaskResult(batch, publish_slice(batch, slot, holder, slot_rows))
        except (Fenced, Aborted) as error:
            raise SinkError(
                f"This attempt to write slice {slot} of micro-batch {batch.batch_id} is over, and "
                f"it published nothing: {error}. Spark retries the task, or start the query again."
            ) from None
        finally:
            holder.abort()
            faults.point("postgres.task.end")

    def settle(self, ledger: Ledger, batch: Batch, slices: Sequence[StagedSlice]) -> None:
        """Fix the table and the table of its markers."""
        ledger.settle({"table": self.table.name, "markers": str(self.options.markers)})

    def publish(
        self,
        batch: Batch,
        slices: Sequence[PublishedSlice | StagedSlice],
        *,
        known_batch_id: int | None,
        accept_difference: bool,
    ) -> Callable[[], None]:
        """Publish staged slices, in mode atomic all of them in one transaction."""
        staged = [piece for piece in slices if isinstance(piece, StagedSlice)]
        sink = PostgresSink(self.options, self.table, batch.query_id)
        try:
            publish_staged(
                batch,
                sink,
                slices,
                atomic=(lambda: staged) if self.options.mode == ATOMIC else None,
                known_batch_id=known_batch_id,
                accept_difference=accept_difference,
            )
        finally:
            sink.close()
        staging = PostgresStaging(self.options, self.table, batch.query_id)
        return lambda: staging.clean(batch.batch_id)


def ready(options: PostgresOptions, columns: Sequence[tuple[str, str]]) -> PostgresWork:
    """Return the work of a sink, after a check of its tables and the stream's columns.

    Parameters
    ----------
    options : PostgresOptions
    columns : sequence of (str, str)
        Names and Spark types of the stream's columns.

    Raises
    ------
    ConfigError
        If a table, a column or a privilege is missing or does not fit.
    SinkError
        If no server answers.
    """
    try:
        with (
            translated_errors(options.table),
            transaction(options.dsn, options.timeout_seconds) as connection,
        ):
            table = find_table(connection, options, columns)
            schema = options.staging_schema or table.schema
            quarantine = options.quarantine
            if quarantine is not None:
                quarantine = make_quarantine_table(connection, quarantine)
            _check_schema(connection, schema)
            update = ["UPDATE"] if table.key else []
            _check_privileges(connection, table.name, table.shown, "INSERT", "SELECT", *update)
            if quarantine is not None:
                _check_privileges(connection, quarantine, str(options.quarantine), "INSERT")
        markers = make_marker_table(options, options.markers or f"{table.schema}.dedup_markers")
    except Aborted as error:
        raise SinkError(f"{error}. Start the query again once the server answers.") from None
    settled = replace(options, markers=markers, staging_schema=schema, quarantine=quarantine)
    return PostgresWork(settled, table)


def _check_schema(connection: psycopg.Connection[Any], schema: str) -> None:
    row = connection.execute(
        "SELECT has_schema_privilege(to_regnamespace(%s)::oid, 'CREATE'), current_user", [schema]
    ).fetchone()
    assert row is not None
    if row[0] is not True:
        raise ConfigError(
            f"User {row[1]} may not create tables in schema {schema}, where slices are staged: "
            f"GRANT CREATE ON SCHEMA {schema} TO {row[1]}, or give the option staging.schema "
            "another one."
        )


def _check_privileges(
    connection: psycopg.Connection[Any], table: str, shown: str, *needed: str
) -> None:
    rows = connection.execute(
        "SELECT p, current_user FROM unnest(%s::text[]) p "
        "WHERE NOT has_table_privilege(to_regclass(%s)::oid, p)",
        [list(needed), table],
    ).fetchall()
    if rows:
        lacking, user = ", ".join(row[0] for row in rows), rows[0][1]
        raise ConfigError(
            f"User {user} may not {lacking} on table {shown}: GRANT {lacking} ON {shown} TO {user}."
        )

"""The sink as Spark runs it: what each task does with its rows, and then the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dedup.errors import ConfigError, SinkError
from dedup.sinks.ledger import Ledger
from dedup.sinks.postgres.connections import transaction, translated_errors
from dedup.sinks.postgres.markers import make_marker_table
from dedup.sinks.postgres.options import ATOMIC, PostgresOptions
from dedup.sinks.postgres.quarantine import make_quarantine_table
from dedup.sinks.postgres.slots import PostgresSink, PostgresSlot, PostgresTaskRows
from dedup.sinks.postgres.staging import PostgresStaging
from dedup.sinks.postgres.tables import TargetTable, find_table
from dedup.sinks.protocol import Aborted, Batch, StagedBatch, StagedSlice
from dedup.sinks.slot_work import SlotWork

if TYPE_CHECKING:
    import psycopg


@dataclass(frozen=True)
class PostgresWork(SlotWork[PostgresSlot]):
    """The work of a PostgreSQL sink; `ready` makes it."""

    options: PostgresOptions
    table: TargetTable
    room = "postgres"

    @property
    def is_atomic(self) -> bool:
        return self.options.mode == ATOMIC

    def slot(self, batch: Batch, number: int) -> PostgresSlot:
        return PostgresSlot(self.options, self.table, batch.query_id, number)

    def staging(self, batch: Batch) -> PostgresStaging:
        return PostgresStaging(self.options, self.table, batch.query_id)

    def task_rows(
        self,
        rows: Iterable[pa.RecordBatch],
        stage: Callable[[Iterable[pa.RecordBatch]], StagedSlice],
    ) -> PostgresTaskRows:
        return PostgresTaskRows(rows, stage)

    def sink(self, batch: Batch) -> PostgresSink:
        return PostgresSink(self.options, self.table, batch.query_id)

    def settle(self, ledger: Ledger, staged: StagedBatch) -> None:
        """Fix the table and the table of its markers."""
        ledger.settle({"table": self.table.name, "markers": str(self.options.markers)})


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

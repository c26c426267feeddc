"""The work of a PostgreSQL sink. Each task publishes or stages its rows, then the driver works."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from dedup.errors import SinkError
from dedup.sinks.ledger import Ledger
from dedup.sinks.options import ATOMIC
from dedup.sinks.postgres.connections import transaction, translated_errors
from dedup.sinks.postgres.markers import make_marker_table
from dedup.sinks.postgres.options import PostgresOptions
from dedup.sinks.postgres.quarantine import make_quarantine_table
from dedup.sinks.postgres.slots import PostgresSink, PostgresSlot, PostgresTaskRows
from dedup.sinks.postgres.staging import PostgresStaging
from dedup.sinks.postgres.tables import TargetTable, find_table
from dedup.sinks.protocol import Aborted, Batch, StagedBatch, StagedSlice
from dedup.sinks.slot_work import SlotWork


@dataclass(frozen=True)
class PostgresWork(SlotWork[PostgresSlot]):
    """The work of a PostgreSQL sink. The function `ready` makes it."""

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
        """Record the names of the target table and of the table of markers in the ledger."""
        ledger.settle({"table": self.table.name, "markers": str(self.options.markers)})


def ready(options: PostgresOptions, columns: Sequence[tuple[str, str]]) -> PostgresWork:
    """Check the tables and the stream's columns, and return the work of the sink.

    `columns` has the name and Spark type of each column of the stream. Raises ConfigError if a
    table or column is missing or does not fit. Raises SinkError if no server answers.
    """
    try:
        with translated_errors(options.table), transaction(options) as connection:
            table = find_table(connection, options, columns)
            schema = options.staging_schema or table.schema
            quarantine = options.quarantine
            if quarantine is not None:
                quarantine = make_quarantine_table(connection, quarantine)
        markers = make_marker_table(options, options.markers or f"{table.schema}.dedup_markers")
    except Aborted as error:
        raise SinkError(f"{error}. Start the query again once the server answers.") from None
    settled = replace(options, markers=markers, staging_schema=schema, quarantine=quarantine)
    return PostgresWork(settled, table)

"""The sink as Spark runs it: what each task does with its rows, and then the driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dedup.errors import ConfigError, SinkError, faults
from dedup.sinks.ledger import Ledger
from dedup.sinks.postgres.connections import explained, transaction
from dedup.sinks.postgres.markers import make_marker_table
from dedup.sinks.postgres.options import ATOMIC, PostgresOptions
from dedup.sinks.postgres.quarantine import make_quarantine_table
from dedup.sinks.postgres.slots import PostgresSink, PostgresSlot, SlotRows
from dedup.sinks.postgres.staging import StagingTables
from dedup.sinks.postgres.target import TargetTable, find_table
from dedup.sinks.protocol import (
    Aborted,
    Batch,
    Fenced,
    PublishedSlice,
    StagedSlice,
    publish_slice,
    publish_staged,
)
from dedup.sinks.work import TaskResult

if TYPE_CHECKING:
    import psycopg


@dataclass(frozen=True, slots=True)
class PostgresWork:
    """Implements `dedup.sinks.work.SinkWork`; made by `ready`."""

    options: PostgresOptions
    table: TargetTable

    @property
    def name(self) -> str:
        """Of the sink within its query."""
        return self.options.name

    def write(self, batch: Batch, slot: int, rows: Iterable[pa.RecordBatch]) -> TaskResult:
        """Publish or stage the rows of a task; return what it tells the driver.

        Raises
        ------
        DataError
            Where the table does not take a record.
        SinkError
            When nothing was published, and the task or the query has to be started again.
        """
        faults.point("postgres.task.begin")
        staging = StagingTables(self.options, self.table, batch.query_id)
        slot_rows = SlotRows(rows, staging, batch.batch_id, slot)
        holder = PostgresSlot(self.options, self.table, batch.query_id, slot)
        try:
            if self.options.mode == ATOMIC:
                return TaskResult(batch, slot_rows.stage())
            return TaskResult(batch, publish_slice(batch, slot, holder, slot_rows))
        except (Fenced, Aborted) as error:
            raise SinkError(
                f"This attempt to write slice {slot} of micro-batch {batch.batch_id} is over, and "
                f"nothing of it is in the table: {error}. Spark tries the task again, or start the "
                "query again."
            ) from None
        finally:
            holder.abort()
            faults.point("postgres.task.end")

    def complete(self, answers: Sequence[TaskResult]) -> None:
        """Publish, on the driver, what the tasks of a micro-batch left to it.

        Raises
        ------
        SinkError
            When the sink holds what contradicts this micro-batch.
        """
        if not answers:
            return
        batch = answers[0].batch
        ledger = Ledger(self.options.ledger, batch.query_id)
        slices = [answer.slice for answer in answers]
        staged = [piece for piece in slices if isinstance(piece, StagedSlice)]
        if staged:
            ledger.settle({"table": self.table.name, "markers": str(self.options.markers)})
            self._publish(batch, slices, staged, ledger.published())
            StagingTables(self.options, self.table, batch.query_id).clean(batch.batch_id)
        faults.point("postgres.driver.published")
        ledger.note_published(batch.batch_id)
        faults.point("postgres.driver.after")

    def _publish(
        self,
        batch: Batch,
        slices: Sequence[PublishedSlice | StagedSlice],
        staged: Sequence[StagedSlice],
        known_batch_id: int | None,
    ) -> None:
        faults.point("postgres.driver.before")
        sink = PostgresSink(self.options, self.table, batch.query_id)
        try:
            publish_staged(
                batch,
                sink,
                slices,
                atomic=(lambda: staged) if self.options.mode == ATOMIC else None,
                known_batch_id=None if self.options.accept_lost_markers else known_batch_id,
                accept_difference=self.options.accept_difference == batch.batch_id,
            )
        except Fenced as error:
            raise SinkError(
                f"Another start of the query publishes micro-batch {batch.batch_id} by now: "
                f"{error}. Let only one start run, and start it again: what is published already "
                "is found then."
            ) from None
        finally:
            sink.close()


def ready(options: PostgresOptions, columns: Sequence[tuple[str, str]]) -> PostgresWork:
    """Return the work of a sink whose table, markers and columns have been looked at.

    Parameters
    ----------
    options : PostgresOptions
    columns : sequence of (str, str)
        Of the stream: names and Spark's types.

    Raises
    ------
    ConfigError
        Saying what to change.
    SinkError
        If no server answers.
    """
    try:
        with explained(options.table), transaction(options.dsn, options.timeout_s) as connection:
            table = find_table(connection, options, columns)
            schema = options.staging_schema or table.schema
            markers = options.markers or f"{table.schema}.dedup_markers"
            quarantine = options.quarantine
            if quarantine is not None:
                quarantine = make_quarantine_table(connection, quarantine)
            row = connection.execute(
                "SELECT has_schema_privilege(to_regnamespace(%s)::oid, 'CREATE'), current_user",
                (schema,),
            ).fetchone()
            needed = {table.name: ["INSERT", "SELECT", *(["UPDATE"] if table.key else [])]}
            if quarantine is not None:
                needed[quarantine] = ["INSERT"]
            lacking = {name: _lacking(connection, name, needed[name]) for name in needed}
        assert row is not None
        if row[0] is not True:
            raise ConfigError(
                f"User {row[1]} may not create tables in schema {schema}, in which slices wait "
                f"for each other: GRANT CREATE ON SCHEMA {schema} TO {row[1]}, or give the option "
                "staging.schema another one."
            )
        shown = {table.name: options.table, quarantine: options.quarantine}
        for name, privileges in lacking.items():
            if privileges:
                raise ConfigError(
                    f"User {row[1]} may not {privileges} on table {shown[name]}: "
                    f"GRANT {privileges} ON {shown[name]} TO {row[1]}."
                )
        markers = make_marker_table(options, markers)
        settled = replace(options, markers=markers, staging_schema=schema, quarantine=quarantine)
    except Aborted as error:
        raise SinkError(f"{error}. Start the query again once the server answers.") from None
    return PostgresWork(settled, table)


def _lacking(connection: psycopg.Connection[Any], table: str, privileges: list[str]) -> str:
    found = connection.execute(
        "SELECT p FROM unnest(%s::text[]) p WHERE NOT has_table_privilege(to_regclass(%s)::oid, p)",
        (privileges, table),
    )
    return ", ".join(row[0] for row in found)

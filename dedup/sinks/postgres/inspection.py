"""What a PostgreSQL sink has published. Nothing is changed."""

from __future__ import annotations

from dedup.errors import SinkError
from dedup.sinks.inspection import SinkInspection, SlotState, sink_states
from dedup.sinks.postgres.connections import transaction, translated_errors
from dedup.sinks.postgres.markers import read_markers
from dedup.sinks.postgres.options import PostgresOptions
from dedup.sinks.postgres.tables import schema_of
from dedup.sinks.protocol import Aborted
from dedup.spark.driver.checkpoint_log import Progress


def inspect_postgres(options: PostgresOptions, progress: Progress | None) -> SinkInspection:
    """Return what a sink of these options has published, in every query.

    Raises
    ------
    ConfigError
        If the table does not exist, or the server rejects the user.
    SinkError
        If no server answers, or a marker is damaged.
    """
    try:
        with (
            translated_errors(options.table),
            transaction(options.dsn, options.timeout_seconds) as connection,
        ):
            table = options.markers or f"{schema_of(connection, options.table)}.dedup_markers"
            markers = read_markers(connection, table, options.name)
    except Aborted as error:
        raise SinkError(f"{error}. Try again once the server answers.") from None
    return SinkInspection(sinks=sink_states((SlotState(marker=m) for m in markers), progress))

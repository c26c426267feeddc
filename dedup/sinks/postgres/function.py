"""The kind `POSTGRES` of the PostgreSQL sink, and the public function `postgres_sink`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dedup.sinks.database import answering_server
from dedup.sinks.foreach_batch import SinkFunction, columns_of
from dedup.sinks.inspection import SinkInspection, inspection_of
from dedup.sinks.kind import SinkKind
from dedup.sinks.options import database_texts
from dedup.sinks.postgres.connections import psycopg_library, transaction, translated_errors
from dedup.sinks.postgres.options import FORMAT, PostgresOptions, postgres_options
from dedup.sinks.postgres.sink import read_markers, ready
from dedup.sinks.postgres.tables import schema_of
from dedup.spark.driver.checkpoint_log import Progress


def inspect_postgres(options: PostgresOptions, progress: Progress | None) -> SinkInspection:
    """Return what a sink with these options has published, for each query that used it."""
    with (
        answering_server("Try again"),
        translated_errors(options.table),
        transaction(options) as connection,
    ):
        table = options.markers or f"{schema_of(connection, options.table)}.dedup_markers"
        return inspection_of(read_markers(connection, table, options.name), progress)


POSTGRES = SinkKind(
    format_name=FORMAT,
    function_name="postgres_sink",
    parse=postgres_options,
    ready=lambda options, schema: ready(options, columns_of(schema)),
    inspect=inspect_postgres,
    takes_complete=lambda options: "key" in options,
)


def postgres_sink(
    dsn: str,
    table: str,
    *,
    checkpoint: str,
    mode: str = "append",
    key: str | Sequence[str] = (),
    version: str | None = None,
    options: Mapping[str, str] | None = None,
) -> SinkFunction:
    """Return a function for ``foreachBatch`` that writes each micro-batch to PostgreSQL once.

    The function does the same as ``format("dedup_postgres")``. Use it for queries that write to
    several places, and on PySpark 4.0.

    Parameters
    ----------
    dsn : str
        Connection string of libpq, such as ``postgresql://user@host/database``.
    table : str
        Name of the table as in SQL. The table must exist.
    checkpoint : str
        The query's checkpoint location.
    mode : str
        ``append``, ``upsert`` or ``atomic``.
    key : str or sequence of str, optional
        Columns that identify a row, for ``upsert`` and ``atomic``.
    version : str, optional
        Column with a version. If two rows have the same key, the row with the greater version
        stays, or the first one of equal versions.
    options : mapping of str to str, optional
        Any other options of the format. Two sinks of one query need different values of `name`.

    Raises
    ------
    ConfigError
        If an option is unknown or invalid. At the first micro-batch, if table and columns do not
        fit.
    MissingExtraError
        If the extra ``postgres`` is not installed.
    """
    psycopg_library()
    given = {"dsn": dsn, **database_texts(table, mode, key, version)}
    return SinkFunction.of(POSTGRES, checkpoint, given, options)

"""The sink as a function for ``foreachBatch``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dedup.sinks.foreach_batch import SinkFunction, columns_of
from dedup.sinks.kind import SinkKind
from dedup.sinks.postgres.connections import psycopg_library
from dedup.sinks.postgres.inspection import inspect_postgres
from dedup.sinks.postgres.options import FORMAT, postgres_options
from dedup.sinks.postgres.work import ready

POSTGRES = SinkKind(
    format_name=FORMAT,
    function_name="postgres_sink",
    parse=postgres_options,
    prepare=lambda options, schema: ready(options, columns_of(schema)),
    inspect=inspect_postgres,
    to_read='a table, use format("jdbc")',
    for_batches='df.write.format("jdbc")',
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

    It is ``format("dedup_postgres")`` for queries that write to several places, and for PySpark
    4.0.

    Parameters
    ----------
    dsn : str
        How to connect, as libpq takes it, such as ``postgresql://user@host/database``.
    table : str
        As in SQL; it must exist.
    checkpoint : str
        The query's checkpoint location.
    mode : str
        ``append``, ``upsert`` or ``atomic``.
    key : str or sequence of str, optional
        Columns that identify a row, for ``upsert`` and ``atomic``.
    version : str, optional
        Column; of two rows with one key, the row with the greater version stays.
    options : mapping of str to str, optional
        Any other option of the format. Two sinks of one query each need a `name`.

    Raises
    ------
    ConfigError
        If an option is unknown or invalid; at the first micro-batch, if table and columns do not
        fit.
    MissingExtraError
        If the extra ``postgres`` is not installed.
    """
    psycopg_library()
    given = {"dsn": dsn, "table": table, "mode": mode}
    if key:
        given["key"] = ",".join([key] if isinstance(key, str) else key)
    if version is not None:
        given["version"] = version
    return SinkFunction.of(POSTGRES, checkpoint, given, options)

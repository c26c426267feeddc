"""The kind `POSTGRES` of the PostgreSQL sink, and the public function `postgres_sink`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dedup.sinks.foreach_batch import SinkFunction
from dedup.sinks.kit.database import database_kind
from dedup.sinks.options import database_texts
from dedup.sinks.postgres.connections import psycopg_library
from dedup.sinks.postgres.options import FORMAT, postgres_options
from dedup.sinks.postgres.sink import read_markers, ready

POSTGRES = database_kind(FORMAT, "postgres_sink", postgres_options, ready, read_markers)


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
    several places, and on PySpark 3.5 and 4.0.

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
    texts = {"dsn": dsn, **database_texts(table, mode, key, version)}
    return SinkFunction.of(POSTGRES, checkpoint, texts, options)

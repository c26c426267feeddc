"""The sink as a function for ``foreachBatch``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dedup.postgres.connections import psycopg_library
from dedup.postgres.postgres_options import postgres_options
from dedup.postgres.postgres_work import PostgresWork, ready
from dedup.sinks.foreach_batch import SinkFunction, columns_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def postgres_sink(
    dsn: str,
    table: str,
    *,
    checkpoint: str,
    mode: str = "append",
    key: Sequence[str] = (),
    version: str | None = None,
    options: Mapping[str, str] | None = None,
) -> SinkFunction:
    """Return a function for ``foreachBatch`` that writes each micro-batch to PostgreSQL once.

    It does what ``format("dedup_postgres")`` does, for queries that write to several places, and
    on PySpark 4.0 as well.

    Parameters
    ----------
    dsn : str
        How to connect, as libpq takes it, such as ``postgresql://user@host/database``.
    table : str
        As in SQL; it has to exist.
    checkpoint : str
        The query's checkpoint location.
    mode : str
        ``append``, ``upsert`` or ``atomic``.
    key : sequence of str, optional
        Columns that tell rows apart, for ``upsert`` and ``atomic``.
    version : str, optional
        Column; of two rows with one key the greater one stays.
    options : mapping of str to str, optional
        Any other option of the format. Two sinks of one query each need a `name`.

    Raises
    ------
    ConfigError
        If an option is unknown or cannot be; at the first micro-batch, if table and columns do not
        fit.
    MissingExtraError
        If the extra ``postgres`` is not installed.
    """
    psycopg_library()
    given = {"dsn": dsn, "table": table, "checkpointLocation": checkpoint, "mode": mode}
    if key:
        given["key"] = ",".join([key] if isinstance(key, str) else key)
    if version is not None:
        given["version"] = version
    made = postgres_options(given | dict(options or {}))
    known: dict[tuple[tuple[str, str], ...], PostgresWork] = {}

    def work(schema: StructType) -> PostgresWork:
        asked = tuple(columns_of(schema))
        if asked not in known:
            known[asked] = ready(made, asked)
        return known[asked]

    return SinkFunction(work, "postgres_sink", made.name, checkpoint)

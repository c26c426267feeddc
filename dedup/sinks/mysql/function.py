"""The kind `MYSQL` of the MySQL sink, and the public function `mysql_sink`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dedup.sinks.foreach_batch import SinkFunction
from dedup.sinks.kit.database import database_kind
from dedup.sinks.mysql.connections import mysql_library
from dedup.sinks.mysql.options import FORMAT, PREFIX, mysql_options
from dedup.sinks.mysql.sink import read_markers, ready
from dedup.sinks.options import database_texts

MYSQL = database_kind(FORMAT, "mysql_sink", mysql_options, ready, read_markers)


def mysql_sink(
    connect: Mapping[str, str | int | bool],
    table: str,
    *,
    checkpoint: str,
    mode: str = "append",
    key: str | Sequence[str] = (),
    version: str | None = None,
    options: Mapping[str, str] | None = None,
) -> SinkFunction:
    """Return a function for ``foreachBatch`` that writes each micro-batch to MySQL once.

    The function does the same as ``format("dedup_mysql")``. Use it for queries that write to
    several places, and on PySpark 3.5 and 4.0.

    Parameters
    ----------
    connect : mapping of str to str, int or bool
        Arguments of PyMySQL's ``connect``, such as ``{"host": "db", "user": "shop", "database":
        "shop", "read_default_file": "~/.my.cnf"}``.
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
        If the extra ``mysql`` is not installed.
    """
    mysql_library()
    texts = database_texts(table, mode, key, version) | {
        f"{PREFIX}{name}": str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in connect.items()
    }
    return SinkFunction.of(MYSQL, checkpoint, texts, options)

"""Tables for what a stream holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dedup.errors import ConfigError
from dedup.sinks.postgres.column_types import Unsuitable, column_type

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def postgres_ddl(schema: StructType, table: str, *, key: str | Sequence[str] = ()) -> str:
    """Return the statement that makes a table for the rows of a stream.

    Parameters
    ----------
    schema : StructType
        ``df.schema``; a column that is not nullable becomes ``NOT NULL``.
    table : str
        As in SQL.
    key : str or sequence of str, optional
        Columns of the primary key, for the modes ``upsert`` and ``atomic``.

    Raises
    ------
    ConfigError
        Naming a column that has no type there, or a key that is no column.
    """
    key = [key] if isinstance(key, str) else key
    for name in key:
        if name not in schema.fieldNames():
            raise ConfigError(f"key={name!r} is no column; there are {schema.fieldNames()}.")
    lines = []
    for field in schema.fields:
        try:
            kind = column_type(field.dataType.simpleString())
        except Unsuitable as why:
            raise ConfigError(f"Column {field.name!r} has no type in PostgreSQL: {why}.") from None
        lines.append(f"{quoted(field.name)} {kind}{'' if field.nullable else ' NOT NULL'}")
    if key:
        lines.append(f"PRIMARY KEY ({', '.join(map(quoted, key))})")
    return f"CREATE TABLE {table} (\n    " + ",\n    ".join(lines) + "\n)"


def quoted(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'

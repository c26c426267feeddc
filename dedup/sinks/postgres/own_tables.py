"""Tables of the sink's own, such as that of the markers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dedup.errors import ConfigError
from dedup.sinks.postgres.connections import psycopg_library
from dedup.sinks.postgres.ddl import quoted

if TYPE_CHECKING:
    import psycopg

_FIND = """
SELECT n.nspname, c.relname, ARRAY(SELECT a.attname FROM pg_attribute a WHERE a.attrelid = c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
_LOST_RACE = ("23505", "42P07")


def make_own_table(
    connection: psycopg.Connection[Any],
    option: str,
    name: str,
    columns: Mapping[str, str],
    key: Sequence[str] = (),
) -> str:
    """Make a table, unless it is there; return its name with its schema.

    Parameters
    ----------
    connection : psycopg.Connection
    option : str
        That names the table.
    name : str
        As in SQL.
    columns : Mapping[str, str]
        Names and types.
    key : sequence of str, optional
        The primary key.

    Raises
    ------
    ConfigError
        If the table is there and something else.
    """
    defined = [f"{column} {kind}" for column, kind in columns.items()]
    if key:
        defined.append(f"PRIMARY KEY ({', '.join(key)})")
    if connection.execute(_FIND, [name]).fetchone() is None:
        statement = f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(defined)})"
        try:
            with connection.transaction():
                connection.execute(statement.encode())
        except psycopg_library().Error as error:
            if error.sqlstate not in _LOST_RACE:  # somebody else has made it meanwhile
                raise
    row = connection.execute(_FIND, [name]).fetchone()
    assert row is not None, "it is there"
    schema, relation, there = row
    if lacking := [column for column in columns if column not in there]:
        raise ConfigError(
            f"Table {name} is none of this sink's own, for it has no column {lacking[0]}: give the "
            f"option {option} another name."
        )
    return f"{quoted(schema)}.{quoted(relation)}"

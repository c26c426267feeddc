"""Ask the server about the table that a sink writes to, and create the sink's own tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dedup.errors import ConfigError
from dedup.sinks.columns import Unsuitable, check_names
from dedup.sinks.database import fitting_column
from dedup.sinks.postgres.columns import Encoding, encoding, quoted
from dedup.sinks.postgres.connections import psycopg_library, rejected_record
from dedup.sinks.postgres.options import PostgresOptions

if TYPE_CHECKING:
    import psycopg

#: PostgreSQL's codes (`relkind`) for ordinary and for partitioned tables.
_TABLES = ("r", "p")
_FIND = """
SELECT c.oid, n.nspname, c.relname, c.relkind
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
#: Query for the columns of a table. For a column of a domain it returns the domain's base type.
_COLUMNS = """
SELECT a.attname, CASE WHEN b.typtype = 'e' THEN 'enum' ELSE format_type(b.oid, NULL) END,
       CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END,
       (a.attnotnull OR t.typnotnull) AND NOT a.atthasdef AND t.typdefault IS NULL
       AND a.attidentity = ''
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_TYPES = """
SELECT md5(string_agg(concat_ws(' ', attname, atttypid, atttypmod), ',' ORDER BY attname))
FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = ANY(%s) AND NOT attisdropped
"""
#: Error codes if two sinks create a table at the same time: unique violation, duplicate table.
_LOST_RACE = ("23505", "42P07")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTable:
    """The table that a sink writes to, with the columns of the stream in the stream's order.

    `name` and `schema` are quoted for SQL. `shown` is the name that the user wrote. `types` is a
    hash of the columns' types when the query started. If there is a `key`, a row replaces the row
    of the same key if its `version` is greater. Without a key the sink only appends rows.
    """

    name: str
    shown: str
    schema: str
    types: str
    columns: tuple[tuple[str, Encoding], ...]
    key: tuple[str, ...] = ()
    version: str | None = None

    @property
    def column_list(self) -> str:
        return ", ".join(quoted(name) for name, _ in self.columns)

    def encoded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Convert rows to the types of the table. Raises DataError if a value does not fit."""
        arrays = []
        for (name, encode), values in zip(self.columns, rows.columns, strict=True):
            if name in self.key and values.null_count:
                raise rejected_record(
                    f"Table {self.shown}: a record has no value in column {name!r}, which is part "
                    "of the key."
                )
            try:
                arrays.append(encode(values))
            except Unsuitable as why:
                raise rejected_record(f"Table {self.shown}, column {name!r}: {why}.") from None
        return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in self.columns])

    def check_types(self, connection: psycopg.Connection[Any]) -> None:
        """Raise ConfigError if somebody has changed the types of columns since the query started.

        The server would accept the bytes of a whole number for a date, for example. Call this in
        the transaction that has written the rows, and roll the transaction back after the error.
        """
        if _types(connection, self.name, [name for name, _ in self.columns]) != self.types:
            raise ConfigError(
                f"The columns of table {self.shown} have other types than when the query started. "
                "Nothing of its slice was written. Start the query again, in foreachBatch with a "
                "new postgres_sink(...)."
            )

    def merge_from(self, source: str, where: str = "") -> str:
        """Return the statement that copies rows from `source`, a table with the same columns.

        The statement sorts rows by their key, so that two writers never wait for each other's rows.
        """
        if not self.key:
            names = self.column_list
            return f"INSERT INTO {self.name} ({names}) SELECT {names} FROM {source} {where}"
        key = ", ".join(map(quoted, self.key))
        others = [name for name, _ in self.columns if name not in self.key]
        update = ", ".join(f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in others)
        newest, newer = "ctid DESC", ""
        if self.version is not None:
            version = quoted(self.version)
            newest = f"{version} DESC NULLS LAST, ctid"
            newer = (
                f" WHERE EXCLUDED.{version} > present.{version} "
                f"OR present.{version} IS NULL AND EXCLUDED.{version} IS NOT NULL"
            )
        action = f"UPDATE SET {update}{newer}" if others else "NOTHING"
        return (
            f"INSERT INTO {self.name} AS present ({self.column_list}) "
            f"SELECT DISTINCT ON ({key}) {self.column_list} FROM {source} {where} "
            f"ORDER BY {key}, {newest} ON CONFLICT ({key}) DO {action}"
        )


def find_table(
    connection: psycopg.Connection[Any],
    options: PostgresOptions,
    columns: Sequence[tuple[str, str]],
) -> TargetTable:
    """Return the table that the sink writes a stream to.

    `columns` has the name and Spark type of each column of the stream. Raises ConfigError if the
    table does not exist, or if a column does not fit.
    """
    oid, schema, relation, kind = _find(connection, options.table)
    if kind not in _TABLES:
        raise ConfigError(f"{options.table} is not a table: this sink only writes to tables.")
    there = {row[0]: row[1:] for row in connection.execute(_COLUMNS, [oid])}
    names = [name for name, _ in columns]
    check_names(options.table, {name: column[2] for name, column in there.items()}, names)
    encodings = []
    for name, spark in columns:
        base, modifier, _ = there[name]
        with fitting_column(name, options.table):
            encodings.append((name, encoding(spark, base, modifier)))
    name = f"{quoted(schema)}.{quoted(relation)}"
    return TargetTable(
        name=name,
        shown=options.table,
        schema=quoted(schema),
        types=_types(connection, name, names),
        columns=tuple(encodings),
        key=options.key,
        version=options.version,
    )


def schema_of(connection: psycopg.Connection[Any], table: str) -> str:
    return quoted(_find(connection, table)[1])


def _find(connection: psycopg.Connection[Any], table: str) -> tuple[Any, ...]:
    found: tuple[Any, ...] | None = connection.execute(_FIND, [table]).fetchone()
    if found is None:
        raise ConfigError(
            f"Table {table} does not exist at this dsn, or this user may not see it. Create it "
            "(dedup.postgres_ddl writes the statement), or correct the option table."
        )
    return found


def _types(connection: psycopg.Connection[Any], table: str, columns: Sequence[str]) -> str:
    row = connection.execute(_TYPES, [table, list(columns)]).fetchone()
    return str(row and row[0])


def make_own_table(
    connection: psycopg.Connection[Any],
    name: str,
    columns: Mapping[str, str],
    key: Sequence[str] = (),
) -> str:
    """Create one of the sink's own tables if it is missing. Return its name with the schema."""
    if connection.execute(_FIND, [name]).fetchone() is None:
        parts = [f"{column} {kind}" for column, kind in columns.items()]
        parts += [f"PRIMARY KEY ({', '.join(key)})"] if key else []
        statement = f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(parts)})"
        try:
            with connection.transaction():
                connection.execute(statement.encode())
        except psycopg_library().Error as error:
            if error.sqlstate not in _LOST_RACE:
                raise
    _, schema, relation, _ = _find(connection, name)
    return f"{quoted(schema)}.{quoted(relation)}"

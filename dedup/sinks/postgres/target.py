"""The table that a sink writes to, as the server describes it, and how rows get into it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dedup.errors import ConfigError
from dedup.sinks.postgres.column_types import Encoding, Unsuitable, encoding
from dedup.sinks.postgres.connections import record_refused
from dedup.sinks.postgres.ddl import quoted
from dedup.sinks.postgres.options import ATOMIC, UPSERT, PostgresOptions

if TYPE_CHECKING:
    import psycopg

#: Ordinary tables and those that are divided into partitions.
_TABLES = ("r", "p")
_FIND = """
SELECT c.oid, n.nspname, c.relname, c.relkind
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
#: A domain is written as what it restricts.
_COLUMNS = """
SELECT a.attname, CASE WHEN b.typtype = 'e' THEN 'enum' ELSE format_type(b.oid, NULL) END,
       CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END,
       (a.attnotnull OR t.typnotnull) AND NOT a.atthasdef AND t.typdefault IS NULL
       AND a.attidentity = '',
       a.attgenerated <> '' OR a.attidentity = 'a'
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_TYPES = """
SELECT md5(string_agg(concat_ws(' ', attname, atttypid, atttypmod), ',' ORDER BY attname))
FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = ANY(%s) AND NOT attisdropped
"""
#: Sets of columns for which ``ON CONFLICT`` finds an index.
_UNIQUE = """
SELECT ARRAY(SELECT a.attname FROM pg_attribute a
             WHERE a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey[0:i.indnkeyatts - 1]))
FROM pg_index i WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate
  AND i.indpred IS NULL AND i.indexprs IS NULL
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTable:
    """A table, and the columns of the stream in their order.

    Parameters
    ----------
    name : str
        As SQL takes it, with its schema.
    shown : str
        As people write it.
    schema : str
        Its schema, as SQL takes it.
    columns : tuple of (str, Encoding)
    key : tuple of str
        Columns of which no two rows have the same values; empty where rows are appended.
    version : str or None
        Column; of two rows with one key the greater one stays.
    types : str
        Of those columns, when the table was looked at.
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
        """The names of the columns, for SQL."""
        return ", ".join(quoted(name) for name, _ in self.columns)

    def encoded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows as they are encoded.

        Raises
        ------
        DataError
            Where a value has no place in its column.
        """
        arrays = []
        for (name, encode), values in zip(self.columns, rows.columns, strict=True):
            if name in self.key and values.null_count:
                raise record_refused(
                    f"Table {self.shown}: a record has no value in column {name!r}, which is of "
                    "the key."
                )
            try:
                arrays.append(encode(values))
            except Unsuitable as why:
                raise record_refused(f"Table {self.shown}, column {name!r}: {why}.") from None
        return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in self.columns])

    def check_types(self, connection: psycopg.Connection[Any]) -> None:
        """Refuse columns that have other types by now, within the transaction that wrote to them.

        Bytes of a whole number are those of some date as well: the server would take them.

        Raises
        ------
        ConfigError
            The transaction must not be committed.
        """
        if _types(connection, self.name, [name for name, _ in self.columns]) != self.types:
            raise ConfigError(
                f"The columns of table {self.shown} have other types than when the query started. "
                "Nothing of its slice was written. Start the query again, in foreachBatch with a "
                "new postgres_sink(...)."
            )

    def merge_from(self, source: str, where: str = "") -> str:
        """Return the statement that brings rows of a table of the same columns into this one.

        Rows of one key are sorted by it, so that writers wait for each other in one direction.
        """
        if not self.key:
            names = self.column_list
            return f"INSERT INTO {self.name} ({names}) SELECT {names} FROM {source} {where}"
        key = ", ".join(map(quoted, self.key))
        others = [name for name, _ in self.columns if name not in self.key]
        update = ", ".join(f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in others)
        newest, newer = "", ""
        if self.version is not None:
            version = quoted(self.version)
            newest = f"{version} DESC NULLS LAST, "
            newer = (
                f" WHERE EXCLUDED.{version} > present.{version} "
                f"OR present.{version} IS NULL AND EXCLUDED.{version} IS NOT NULL"
            )
        action = f"UPDATE SET {update}{newer}" if others else "NOTHING"
        return (
            f"INSERT INTO {self.name} AS present ({self.column_list}) "
            f"SELECT DISTINCT ON ({key}) {self.column_list} FROM {source} {where} "
            f"ORDER BY {key}, {newest}ctid DESC ON CONFLICT ({key}) DO {action}"
        )


def find_table(
    connection: psycopg.Connection[Any],
    options: PostgresOptions,
    columns: Sequence[tuple[str, str]],
) -> TargetTable:
    """Return the table that the options name, for the columns of a stream.

    Parameters
    ----------
    connection : psycopg.Connection
    options : PostgresOptions
    columns : sequence of (str, str)
        Names and Spark's types.

    Raises
    ------
    ConfigError
        Naming the table, or the column, that cannot take them.
    """
    found = connection.execute(_FIND, [options.table]).fetchone()
    if found is None:
        raise ConfigError(
            f"There is no table {options.table} at this dsn, or this user does not see it. Create "
            "it (dedup.postgres_ddl writes the statement), or correct the option table."
        )
    oid, schema, relation, kind = found
    if kind not in _TABLES:
        raise ConfigError(f"{options.table} is no table: this sink writes to tables alone.")
    there = {row[0]: row[1:] for row in connection.execute(_COLUMNS, [oid])}
    _check_names(options, there, [name for name, _ in columns])
    encodings = []
    for name, spark in columns:
        base, modifier, _, is_generated = there[name]
        try:
            if is_generated:
                raise Unsuitable("the table computes it")
            encodings.append((name, encoding(spark, base, modifier)))
        except Unsuitable as why:
            raise ConfigError(
                f"Column {name!r} of the stream does not go into table {options.table}: {why}."
            ) from None
    _check_key(options, [set(row[0]) for row in connection.execute(_UNIQUE, [oid])])
    name = f"{quoted(schema)}.{quoted(relation)}"
    in_use = options.mode in (UPSERT, ATOMIC)
    return TargetTable(
        name=name,
        shown=options.table,
        schema=quoted(schema),
        types=_types(connection, name, [column for column, _ in columns]),
        columns=tuple(encodings),
        key=options.key if in_use else (),
        version=options.version if in_use else None,
    )


def _types(connection: psycopg.Connection[Any], table: str, columns: Sequence[str]) -> str:
    row = connection.execute(_TYPES, [table, list(columns)]).fetchone()
    return str(row and row[0])


def _check_names(
    options: PostgresOptions, there: dict[str, tuple[Any, ...]], names: Sequence[str]
) -> None:
    for name in names:
        if name not in there:
            near = [other for other in there if other.lower() == name.lower()]
            hint = f"it has {near[0]!r}" if near else f"it has {_some(there)}"
            raise ConfigError(
                f"Table {options.table} has no column {name!r}; {hint}. Rename or drop the column "
                "of the stream, or add it to the table."
            )
    if len(set(names)) < len(names):
        raise ConfigError("The stream has two columns of one name: rename one of them.")
    for name, (_, _, is_needed, _) in there.items():
        if is_needed and name not in names:
            raise ConfigError(
                f"Column {name!r} of table {options.table} must have a value, and the stream has "
                "no such column. Add it to the stream, or give the column a default."
            )
    for option, wanted in (("key", options.key), ("version", (options.version,))):
        for name in filter(None, wanted):
            if name not in names:
                raise ConfigError(
                    f"Option {option} names {name!r}, which is no column of the stream; there are "
                    f"{_some(names)}."
                )


def _check_key(options: PostgresOptions, unique: Sequence[set[str]]) -> None:
    if options.key and set(options.key) not in unique:
        index = ", ".join(map(quoted, options.key))
        raise ConfigError(
            f"No unique index of table {options.table} is over the columns of the key, so the "
            "server cannot tell rows of one key. Make it: "
            f"CREATE UNIQUE INDEX ON {options.table} ({index})."
        )


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:20]) + (", ..." if len(listed) > 20 else "")

"""Ask the server about the table that a sink writes to, and write rows to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dedup.errors import ConfigError
from dedup.sinks.columns import Unsuitable, check_names
from dedup.sinks.mysql.columns import COLLATIONS, MysqlColumn, quoted
from dedup.sinks.mysql.connections import (
    mysql_library,
    rejected_record,
    rejected_row,
    translate_error,
)
from dedup.sinks.mysql.options import MysqlOptions
from dedup.sinks.utf8 import check_utf8, only_utf8

_TABLE = """
SELECT engine, table_type FROM information_schema.tables
WHERE table_schema = %s AND table_name = %s
"""
_COLUMNS = """
SELECT column_name, data_type, column_type LIKE '%% unsigned%%',
       is_nullable = 'NO' AND column_default IS NULL AND extra NOT LIKE '%%auto_increment%%'
       AND coalesce(generation_expression, '') = '',
       coalesce(generation_expression, '') <> '', collation_name, character_set_name,
       character_maximum_length, character_octet_length, numeric_precision, numeric_scale,
       datetime_precision
FROM information_schema.columns WHERE table_schema = %s AND table_name = %s
ORDER BY ordinal_position
"""
_UNIQUE = """
SELECT index_name, column_name, sub_part FROM information_schema.statistics
WHERE table_schema = %s AND table_name = %s AND non_unique = 0
"""
#: Largest number of bytes of a statement. Servers accept at least 4 MiB by default.
_STATEMENT_BYTES = 1 << 20
_PARTS = 1 << 10
#: Largest number of characters of a record that an error shows.
_SHOWN = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlTable:
    """The table that a sink writes to, with the columns of the stream in the stream's order.

    `name` is quoted for SQL. If there is a `key`, a row replaces the row of the
    same key, with a `version` only if its version is greater.
    """

    name: str
    columns: tuple[MysqlColumn, ...]
    key: tuple[str, ...] = ()
    version: str | None = None

    @property
    def insert(self) -> tuple[str, str]:
        """The statement before and after its rows."""
        names = ", ".join(quoted(column.name) for column in self.columns)
        return f"INSERT INTO {self.name} ({names}) VALUES ", self._on_duplicate_key()

    def _on_duplicate_key(self) -> str:
        if not self.key:
            return ""
        others = [column.name for column in self.columns if column.name not in self.key]
        if not others:  # the row stays as it is
            others = [self.key[0]]
        if self.version is None:
            pairs = [f"{quoted(name)} = VALUES({quoted(name)})" for name in others]
            return f" ON DUPLICATE KEY UPDATE {', '.join(pairs)}"
        version = quoted(self.version)
        newer = (
            f"VALUES({version}) > {version} OR {version} IS NULL AND VALUES({version}) IS NOT NULL"
        )
        # The server assigns from left to right, so the version, which decides, comes last.
        others.sort(key=lambda name: name == self.version)
        pairs = [
            f"{quoted(name)} = IF({newer}, VALUES({quoted(name)}), {quoted(name)})"
            for name in others
        ]
        return f" ON DUPLICATE KEY UPDATE {', '.join(pairs)}"

    def write(self, options: MysqlOptions, connection: Any, rows: pa.RecordBatch) -> None:
        """Write rows within the open transaction. Raises DataError if a record does not fit."""
        before, after = self.insert
        with only_utf8(f"table {options.table}"):
            check_utf8(rows)
        for first in range(0, rows.num_rows, _PARTS):
            part = rows.slice(first, _PARTS)
            pattern = f"({','.join(['%s'] * len(self.columns))})"
            with connection.cursor() as cursor:
                literals = [
                    cursor.mogrify(pattern, row)
                    for row in zip(*self._values(options, part), strict=True)
                ]
            done = 0
            for chunk in _chunks(literals):
                self._run(
                    options, connection, before + ",".join(chunk) + after,
                    part.slice(done, len(chunk)),
                )  # fmt: skip
                done += len(chunk)

    def _values(self, options: MysqlOptions, rows: pa.RecordBatch) -> list[list[Any]]:
        found = []
        for column, values in zip(self.columns, rows.columns, strict=True):
            where = f"Table {options.table}, column {column.name!r}"
            if column.name in self.key and values.null_count:
                raise rejected_record(f"{where}: a record has no value, and it is part of the key.")
            try:
                found.append(column.values(values))
            except Unsuitable as why:
                record = next(each for each in _singly(rows) if _unfit(column, each))
                raise rejected_record(f"{where}: {why}. The record is {_shown(record)}.") from None
        return found

    def _run(
        self, options: MysqlOptions, connection: Any, statement: str, rows: pa.RecordBatch
    ) -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
        except mysql_library().Error as error:
            row = rejected_row(error)
            translated = translate_error(options, error)
            if row is not None and row <= rows.num_rows and not isinstance(translated, ConfigError):
                translated = rejected_record(
                    f"Table {options.table}: {error.args[-1]}. The record is "
                    f"{_shown(rows.slice(row - 1, 1))}."
                )
            raise translated from None


def _chunks(literals: Sequence[str]) -> Iterator[list[str]]:
    """Divide the literals of rows, so that no statement gets too long for the server."""
    chunk: list[str] = []
    nbytes = 0
    for literal in literals:
        if chunk and nbytes + len(literal) > _STATEMENT_BYTES:
            yield chunk
            chunk, nbytes = [], 0
        chunk.append(literal)
        nbytes += len(literal)
    if chunk:
        yield chunk


def _singly(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    return (rows.slice(number, 1) for number in range(rows.num_rows))


def _unfit(column: MysqlColumn, row: pa.RecordBatch) -> bool:
    try:
        column.values(row.column(column.name))
    except Unsuitable:
        return True
    return False


def _shown(row: pa.RecordBatch) -> str:
    pairs = zip(row.schema.names, row.columns, strict=True)
    text = str({name: str(values[0]) for name, values in pairs})
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def find_table(
    cursor: Any, options: MysqlOptions, columns: Sequence[tuple[str, str]]
) -> MysqlTable:
    """Return the table that the sink writes a stream to.

    `columns` has the name and Spark type of each column of the stream. Raises ConfigError if the
    table does not exist, is not of InnoDB, or has a column or key that does not fit.
    """
    database, table = located(cursor, options.table)
    cursor.execute(_TABLE, (database, table))
    found = cursor.fetchone()
    if found is None:
        raise ConfigError(
            f"Table {options.table} does not exist, or this user may not see it. Create it "
            "(dedup.mysql_ddl writes the statement), or correct the option table."
        )
    if found[1] != "BASE TABLE" or str(found[0]).lower() != "innodb":
        raise ConfigError(
            f"{options.table} is a {found[1]} of the engine {found[0]}. This sink only writes to "
            "tables of InnoDB, because rows and marker need one transaction."
        )
    cursor.execute(_COLUMNS, (database, table))
    there = {row[0]: MysqlColumn(*row) for row in cursor.fetchall()}
    names = [name for name, _ in columns]
    check_names(options.table, {name: bool(c.is_required) for name, c in there.items()}, names)
    for name, spark in columns:
        try:
            there[name].check(spark)
        except Unsuitable as why:
            raise ConfigError(
                f"Column {name!r} of the stream does not go into table {options.table}: {why}."
            ) from None
    if options.key:
        _check_key(cursor, options, (database, table), there)
    return MysqlTable(
        name=f"{quoted(database)}.{quoted(table)}",
        columns=tuple(there[name] for name in names),
        key=options.key,
        version=options.version,
    )


def exists(cursor: Any, name: str) -> bool:
    cursor.execute(_TABLE, located(cursor, name))
    return cursor.fetchone() is not None


def located(cursor: Any, name: str) -> tuple[str, str]:
    """Return the database and the name of a table that is named as in SQL."""
    parts = [part.strip("`").replace("``", "`") for part in _split(name)]
    if len(parts) == 2:
        return parts[0], parts[1]
    cursor.execute("SELECT DATABASE()")
    (database,) = cursor.fetchone()
    if database is None:
        raise ConfigError(
            f"Table {name} has no database: give the option mysql.database, or name the table as "
            "database.table."
        )
    return database, parts[0]


def _split(name: str) -> list[str]:
    inside, parts = False, [""]
    for character in name:
        inside ^= character == "`"
        if character == "." and not inside:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _check_key(
    cursor: Any, options: MysqlOptions, place: tuple[str, str], there: dict[str, MysqlColumn]
) -> None:
    """Raise ConfigError unless the key is the table's only unique index, and keeps values apart."""
    cursor.execute(_UNIQUE, place)
    indexes: dict[str, set[tuple[str, Any]]] = {}
    for index, column, prefix in cursor.fetchall():
        indexes.setdefault(index, set()).add((column, prefix))
    wanted = {(name, None) for name in options.key}
    if wanted not in indexes.values():
        raise ConfigError(
            f"Table {options.table} has no unique index over the key ({', '.join(options.key)})."
        )
    if len(indexes) > 1:
        others = ", ".join(name for name, columns in indexes.items() if columns != wanted)
        raise ConfigError(
            f"Table {options.table} has another unique index, {others}. MySQL would update the row "
            "that any of them finds, and not the row of the key. Drop it, or use mode append."
        )
    for name in options.key:
        if name not in there:
            raise ConfigError(f"Option key: table {options.table} has no column {name!r}.")
        if (collation := there[name].collation) is not None:
            # Ask the server: MariaDB has MySQL's name utf8mb4_0900_bin for another comparison.
            cursor.execute(
                "SELECT " + " OR ".join(
                    f"CONVERT(%s USING utf8mb4) COLLATE {collation} = CONVERT(%s USING utf8mb4)"
                    for _ in _APART
                ),
                [each for pair in _APART for each in pair],
            )  # fmt: skip
            if cursor.fetchone()[0]:
                raise ConfigError(
                    f"The key column {name!r} of table {options.table} has the collation "
                    f"{collation}, which takes different keys for the same, such as 'a', 'A' and "
                    f"'a '. Change it to {COLLATIONS['mysql']} of MySQL, or to "
                    f"{COLLATIONS['mariadb']} of MariaDB."
                )


#: Texts that many collations take for equal.
_APART = (("a", "A"), ("a", "a "), ("a", "\u00e1"), ("ss", "\u00df"), ("\u0410", "\u0430"))

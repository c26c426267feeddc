"""Ask the server about the table that a sink writes to, and write rows to it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dedup.errors import ConfigError, DataError
from dedup.sinks.columns import Unsuitable, check_names
from dedup.sinks.kit.database import (
    changed_columns,
    check_deciding,
    converted,
    fitting_column,
    parts,
    rejected_record,
    with_record,
)
from dedup.sinks.mysql.columns import COLLATIONS, MysqlColumn, check_key_type, quoted
from dedup.sinks.mysql.connections import translated_errors
from dedup.sinks.mysql.options import MysqlOptions
from dedup.sinks.utf8 import check_utf8, only_utf8

_TABLE = """
SELECT engine, table_type FROM information_schema.tables
WHERE table_schema = %s AND table_name = %s AND table_type <> 'TEMPORARY'
"""
#: Types of tables that hold rows. MariaDB keeps earlier versions of rows in the second one.
_ROWS_IN = ("BASE TABLE", "SYSTEM VERSIONED")
_COLUMNS = """
SELECT column_name, data_type, column_type LIKE '%% unsigned%%',
       is_nullable = 'YES',
       is_nullable = 'NO' AND column_default IS NULL AND extra NOT LIKE '%%auto_increment%%'
       AND coalesce(generation_expression, '') = '',
       coalesce(generation_expression, ''), collation_name, character_set_name,
       character_maximum_length, character_octet_length, numeric_precision, numeric_scale,
       datetime_precision
FROM information_schema.columns WHERE table_schema = %s AND table_name = %s
ORDER BY ordinal_position
"""
_DURABLE = """
SHOW GLOBAL VARIABLES
WHERE variable_name IN ('innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog')
"""
_UNIQUE = """
SELECT index_name, column_name, sub_part FROM information_schema.statistics
WHERE table_schema = %s AND table_name = %s AND non_unique = 0
"""
#: The collation that compares code points and never pads. MariaDB has MySQL's name
#: utf8mb4_0900_bin too, but pads there, and MySQL does not have MariaDB's name.
_COLLATION = f"""
SELECT collation_name FROM information_schema.collations
WHERE collation_name IN ('{COLLATIONS["mariadb"]}', '{COLLATIONS["mysql"]}')
ORDER BY collation_name = '{COLLATIONS["mariadb"]}' DESC LIMIT 1
"""
_MARKERS = ("marker_key", "marker", "holder")
#: The part of ``SHOW CREATE TABLE`` that changes with the rows.
_NEXT_NUMBER = re.compile(r" AUTO_INCREMENT=\d+")
_NAME_PART = re.compile(r"`((?:[^`]|``)+)`|([\w$]+)")
#: Bytes of a packet before the statement.
_PACKET_HEADER = 8
#: Largest number of Arrow bytes, and of rows, of a statement with several rows.
_BYTES, _ROWS = 1 << 20, 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlTable:
    """The table that a sink writes to, with the columns of the stream in the stream's order.

    `name` is quoted for SQL. If the options have a key, a row replaces the row of the same key,
    with a version only if its version is greater. The server accepts statements of `packet_bytes`.
    `stream` has the name and Spark type of each column. `definition` is a hash of the statements
    that would create the table and the table of markers as they were when the query started.
    """

    options: MysqlOptions
    name: str
    stream: tuple[tuple[str, str], ...]
    columns: tuple[MysqlColumn, ...]
    packet_bytes: int
    definition: bytes

    def _on_duplicate_key(self) -> str:
        key, version = self.options.key, self.options.version
        if not key:
            return ""
        others = [column.name for column in self.columns if column.name not in key]
        if not others:  # the row keeps its values
            others = [key[0]]
        if version is None:
            pairs = [f"{quoted(name)} = VALUES({quoted(name)})" for name in others]
            return f" ON DUPLICATE KEY UPDATE {', '.join(pairs)}"
        old, new = quoted(version), f"VALUES({quoted(version)})"
        newer = f"{new} > {old} OR {old} IS NULL AND {new} IS NOT NULL"
        # The server assigns from left to right, so the version, which decides, comes last.
        others.sort(key=lambda name: name == version)
        pairs = [
            f"{quoted(name)} = IF({newer}, VALUES({quoted(name)}), {quoted(name)})"
            for name in others
        ]
        return f" ON DUPLICATE KEY UPDATE {', '.join(pairs)}"

    def write(self, connection: Any, rows: pa.RecordBatch) -> None:
        """Write rows within the open transaction. Raises DataError if a record does not fit."""
        with only_utf8(f"table {self.options.table}"):
            check_utf8(rows)
        if self.options.key:
            # Transactions that lock rows in one order do not deadlock. The sort is stable.
            order = [(name, "ascending") for name in self.options.key]
            rows = rows.take(pc.sort_indices(rows, order))
        with connection.cursor() as cursor:
            row = f"({','.join(['%s'] * len(self.columns))})"
            for part in parts(rows, _ROWS, _BYTES):
                literals = [
                    cursor.mogrify(row, each).encode(errors="surrogateescape")
                    for each in zip(*converted(part, self._values), strict=True)
                ]
                self._insert(cursor, literals, part)

    def check(self, cursor: Any) -> None:
        """Raise ConfigError if a table has changed so that the start would reject it now.

        Also raises ConfigError if columns of the stream have changed. The server locks the tables
        against DDL until the transaction ends.
        """
        if _definition(cursor, self.name, self.options) == self.definition:
            return
        if find_table(cursor, self.options, self.stream).columns != self.columns:
            raise changed_columns(self.options.table)

    def _values(self, rows: pa.RecordBatch) -> list[list[Any]]:
        lists = []
        for column, values in zip(self.columns, rows.columns, strict=True):
            try:
                lists.append(column.values(values))
            except Unsuitable as why:
                raise rejected_record(
                    f"Table {self.options.table}, column {column.name!r}: {why}."
                ) from None
        return lists

    def _insert(self, cursor: Any, literals: Sequence[bytes], rows: pa.RecordBatch) -> None:
        """Insert rows, in several statements if one is too long for the server.

        If the server rejects a record, raise DataError, which shows the record.
        """
        names = ", ".join(quoted(column.name) for column in self.columns)
        before = f"INSERT INTO {self.name} ({names}) VALUES ".encode()
        statement = before + b",".join(literals) + self._on_duplicate_key().encode()
        nbytes = len(statement) + _PACKET_HEADER
        if nbytes > self.packet_bytes and len(literals) > 1:
            self._insert_halves(cursor, literals, rows)
            return
        try:
            if nbytes > self.packet_bytes:
                raise rejected_record(
                    f"Table {self.options.table}: a record needs a statement of {nbytes:,} bytes, "
                    f"and the server's max_allowed_packet is {self.packet_bytes:,}."
                )
            with translated_errors(self.options):
                cursor.execute(statement)
        except DataError as error:
            if len(literals) == 1:
                raise with_record(error, rows) from None
            # The server has undone this statement alone. Find the record that it rejects.
            self._insert_halves(cursor, literals, rows)
            raise

    def _insert_halves(self, cursor: Any, literals: Sequence[bytes], rows: pa.RecordBatch) -> None:
        half = len(literals) // 2
        self._insert(cursor, literals[:half], rows.slice(0, half))
        self._insert(cursor, literals[half:], rows.slice(half))


def _definition(cursor: Any, table: str, options: MysqlOptions) -> bytes:
    """Lock a table and the markers against DDL, and return a hash of their definitions."""
    tables, hasher = (table, str(options.markers)), blake2b(digest_size=16)
    cursor.execute(f"SELECT 1 FROM {', '.join(tables)} LIMIT 0")
    for name in tables:
        cursor.execute(f"SHOW CREATE TABLE {name}")
        statement = _NEXT_NUMBER.sub("", str(cursor.fetchone()[1]))
        if statement.startswith("CREATE TEMPORARY"):
            raise ConfigError(
                f"A temporary table of this session hides table {name}, and the server would drop "
                "it with all rows. Do not create temporary tables in init_connect."
            )
        hasher.update(statement.encode())
    return hasher.digest()


def find_table(
    cursor: Any, options: MysqlOptions, columns: Sequence[tuple[str, str]]
) -> MysqlTable:
    """Return the table that the sink writes a stream to.

    `columns` has the name and Spark type of each column of the stream. Raises ConfigError if the
    table does not exist, is not of InnoDB, or has a column or key that does not fit. The table of
    markers must exist. The server locks both against DDL until the transaction ends.
    """
    database, table = located(cursor, options.table)
    full_name = f"{quoted(database)}.{quoted(table)}"
    if not exists(cursor, options.table):
        raise ConfigError(
            f"Table {options.table} does not exist, or this user may not see it. Create it "
            "(dedup.sinks.mysql_ddl writes the statement), or correct the option table."
        )
    definition = _definition(cursor, full_name, options)
    for each in (options.table, str(options.markers)):
        exists(cursor, each)
    _check_markers(cursor, str(options.markers))
    by_name = _columns(cursor, (database, table))
    names = [name for name, _ in columns]
    check_deciding(options, names)
    check_names(options.table, {name: bool(c.is_required) for name, c in by_name.items()}, names)
    for name, spark in columns:
        with fitting_column(name, options.table):
            by_name[name].check(spark)
            if name in options.key:
                check_key_type(by_name[name].kind)
    if options.key:
        _check_key(cursor, options, (database, table), by_name)
    cursor.execute("SELECT @@max_allowed_packet")
    return MysqlTable(
        options=options,
        name=full_name,
        packet_bytes=cursor.fetchone()[0],
        stream=tuple(columns),
        definition=definition,
        columns=tuple(
            replace(by_name[name], is_nullable=False) if name in options.key else by_name[name]
            for name in names
        ),
    )


def crash_risk(cursor: Any) -> tuple[str, str] | None:
    """Return what a crash can take of commits, and what to change, or None if nothing."""
    cursor.execute(_DURABLE)
    settings = dict(cursor.fetchall())
    if settings.pop("log_bin", "OFF") == "OFF":
        settings.pop("sync_binlog", None)
    weak = [f"{name}={value}" for name, value in sorted(settings.items()) if value != "1"]
    if not weak:
        return None
    return (
        f"The server of the sink has {' and '.join(weak)}. If its machine crashes, it loses the "
        "commits of about the last second: rows and markers. Spark does not send these rows again.",
        "\n".join(f"{each.partition('=')[0]}=1" for each in weak),
    )


def exists(cursor: Any, name: str) -> bool:
    """Return whether a table exists. Raise ConfigError if it is not an ordinary InnoDB table."""
    cursor.execute(_TABLE, located(cursor, name))
    if (row := cursor.fetchone()) is None:
        return False
    engine, kind = row
    if kind not in _ROWS_IN:
        raise ConfigError(
            f"{name} is not a table, but a {kind.lower()}. Give the option the name of a table."
        )
    if str(engine).lower() != "innodb":
        raise ConfigError(
            f"Table {name} is of the engine {engine}. Rows and markers must be in one transaction "
            "of InnoDB, which keeps both in a crash. Change the engine: "
            f"ALTER TABLE {name} ENGINE = InnoDB"
        )
    return True


def located(cursor: Any, name: str) -> tuple[str, str]:
    """Return the database and the name of a table that is named as in SQL."""
    parts = [inside.replace("``", "`") or plain for inside, plain in _NAME_PART.findall(name)]
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


def _columns(cursor: Any, place: tuple[str, str]) -> dict[str, MysqlColumn]:
    cursor.execute(_COLUMNS, place)
    return {row[0]: MysqlColumn(*row) for row in cursor.fetchall()}


def _unique_indexes(
    cursor: Any, place: tuple[str, str], columns: dict[str, MysqlColumn]
) -> dict[str, set[tuple[str, Any]]]:
    """Return the columns of each unique index, each with the length of its prefix or None."""
    cursor.execute(_UNIQUE, place)
    indexes: dict[str, set[tuple[str, Any]]] = {}
    for index, column, prefix in cursor.fetchall():
        # MariaDB adds the end of a row's validity, which is the same for all current rows.
        if column not in columns or columns[column].computed_by != "ROW END":
            indexes.setdefault(index, set()).add((column, prefix))
    return indexes


def _check_markers(cursor: Any, name: str) -> None:
    columns = _columns(cursor, place := located(cursor, name))
    kinds = {columns[each].kind if each in columns else None for each in _MARKERS}
    key = {("marker_key", None)}
    if kinds != {"varbinary"} or key not in _unique_indexes(cursor, place, columns).values():
        raise ConfigError(
            f"Table {name} cannot hold markers. It needs the columns {', '.join(_MARKERS)} of type "
            "VARBINARY, and the primary key marker_key. Change it, or name another table in the "
            "option markers, which the sink creates."
        )


def _check_key(
    cursor: Any, options: MysqlOptions, place: tuple[str, str], by_name: dict[str, MysqlColumn]
) -> None:
    """Raise ConfigError unless the key is the table's only unique index, and keeps values apart."""
    indexes = _unique_indexes(cursor, place, by_name)
    wanted = {(name, None) for name in options.key}
    if wanted not in indexes.values():
        raise ConfigError(
            f"Table {options.table} has no unique index over the key ({', '.join(options.key)})."
        )
    if others := [name for name, columns in indexes.items() if columns != wanted]:
        raise ConfigError(
            f"Table {options.table} has another unique index, {', '.join(others)}. MySQL would "
            "update the row that any of them finds, and not the row of the key. Drop it, or use "
            "mode append."
        )
    cursor.execute(_COLLATION)
    kept = (cursor.fetchone() or (None,))[0]
    for column in (by_name[name] for name in (*options.key, options.version) if name is not None):
        if column.collation not in (None, kept):
            raise ConfigError(
                f"Column {column.name!r} of the options key and version has the collation "
                f"{column.collation} in table {options.table}. This collation can take different "
                "texts for equal, and the sink would merge their rows. Change it, and repeat the "
                "column's DEFAULT and COMMENT if there are any: "
                f"ALTER TABLE {options.table} MODIFY {column.with_collation(kept)}"
            )

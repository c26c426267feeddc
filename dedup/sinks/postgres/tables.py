"""Ask the server about the table that a sink writes to, and create the sink's own tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from dedup.errors import ConfigError
from dedup.sinks.columns import Unsuitable, check_names
from dedup.sinks.kit.database import changed_columns, check_deciding, fitting_column
from dedup.sinks.postgres.columns import Encoding, check_compared, encoding, quoted
from dedup.sinks.postgres.connections import Connection, psycopg_library, rejected_record
from dedup.sinks.postgres.options import PostgresOptions

_FIND = """
SELECT n.nspname, c.relname
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
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
#: Tables and their partitions at any depth. It locks none of them, unlike `pg_partition_tree`.
_TREE = """
WITH RECURSIVE tree(root, oid, relkind, relpersistence) AS (
    SELECT oid, oid, relkind, relpersistence
    FROM pg_class WHERE oid = ANY(%(tables)s::regclass[]::oid[]) UNION ALL
    SELECT root, c.oid, c.relkind, c.relpersistence FROM tree
    JOIN pg_inherits ON inhparent = tree.oid AND tree.relkind = 'p'
    JOIN pg_class c ON c.oid = inhrelid
)"""
#: A table or partition that the sink refuses, and a key of `_REFUSED`.
_UNSAFE = f"""{_TREE}
SELECT root::regclass::text, nullif(oid, root)::regclass::text, kind FROM (
    SELECT oid, root, CASE WHEN relkind NOT IN ('r', 'p') THEN relkind
        WHEN relpersistence = 't' OR relpersistence = 'u' AND relkind = 'r' THEN relpersistence
        WHEN EXISTS (SELECT FROM pg_rewrite WHERE ev_class = tree.oid AND ev_type = '3')
            AND oid = root THEN 'R'
    END AS kind FROM tree
) AS found WHERE kind IS NOT NULL LIMIT 1
"""
_REFUSED = {
    "u": "is UNLOGGED: a crash of the server would empty it. Run ALTER TABLE {} SET LOGGED",
    "t": "is temporary, and ends with its session. Create it without TEMPORARY",
    "f": "is a foreign table, which is not committed with the markers. Use a table of this server",
    "v": "is a view, whose rules or triggers decide what becomes of rows. Name its table",
    "R": "has a rule for INSERT, which COPY ignores. Replace the rule by a trigger",
}
#: The unique indexes that ON CONFLICT chooses for a key. If an index may take different bytes of a
#: column for equal, also the column with its type, and how the index compares it.
_KEY_INDEXES = """
SELECT indexrelid::regclass::text,
    min(format('%%I TYPE %%s', attname, format_type(atttypid, atttypmod))) FILTER (WHERE differs),
    min(concat_ws(' and ', 'collation ' || collname, 'operator class ' || opcname))
        FILTER (WHERE differs)
FROM pg_index, unnest(indkey::int2[], indcollation::oid[], indclass::oid[])
    WITH ORDINALITY AS part(number, collation_id, class_id, place)
JOIN pg_opclass o ON o.oid = class_id LEFT JOIN pg_collation l ON l.oid = collation_id, LATERAL (
    SELECT *, opcnamespace <> 'pg_catalog'::regnamespace OR opcintype = 'bpchar'::regtype
        OR NOT collisdeterministic AS differs
    FROM pg_attribute WHERE attrelid = indrelid AND attnum = number
) AS found
WHERE indrelid = %(table)s::regclass AND indisunique AND indisvalid AND indimmediate
AND NOT indisexclusion AND indpred IS NULL AND indexprs IS NULL AND place <= indnkeyatts GROUP BY 1
HAVING count(DISTINCT attname) = cardinality(%(key)s::text[])
AND bool_and(attname::text = ANY(%(key)s::text[])) ORDER BY 2, 1
"""
#: A hash of the rows of the catalogs on which the checks at the start depend.
_HASH = f"""{_TREE}
SELECT hashtextextended(concat(
    (SELECT string_agg(DISTINCT concat(relkind, relpersistence), ',') FROM tree),
    (SELECT count(*) FROM tree JOIN pg_rewrite ON ev_class = tree.oid AND ev_type = '3'),
    (SELECT string_agg(a::text, ',' ORDER BY attrelid, attnum)
     FROM pg_attribute a WHERE attrelid = ANY(%(tables)s::regclass[]::oid[])),
    (SELECT string_agg(i::text, ',' ORDER BY indexrelid)
     FROM pg_index i WHERE indrelid = ANY(%(tables)s::regclass[]::oid[]) AND indisunique)
), 0)
"""
#: Primary key of the table of markers.
MARKERS_KEY = ("query_id", "sink", "slot")
#: Error codes if two sinks create a table at the same time: unique violation, duplicate table.
_LOST_RACE = ("23505", "42P07")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTable:
    """The table that a sink writes to, with the columns of the stream in the stream's order.

    `name` is the full name, quoted for SQL. `stream` has the columns' Spark types. `definition` is
    a hash of how the sink's tables were defined when the query started. If the options have a key,
    a row replaces the row of the same key, with a version only if its version is greater.
    """

    options: PostgresOptions
    name: str
    stream: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, Encoding], ...]
    definition: int

    @property
    def column_list(self) -> str:
        return ", ".join(quoted(name) for name, _ in self.columns)

    def encoded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Convert rows to the types of the table. Raises DataError if a value does not fit."""
        arrays = []
        for (name, encode), values in zip(self.columns, rows.columns, strict=True):
            if name in self.options.key and values.null_count:
                raise rejected_record(
                    f"Table {self.options.table}: a record has no value in column {name!r}, which "
                    "is part of the key."
                )
            try:
                arrays.append(encode(values))
            except Unsuitable as why:
                raise rejected_record(
                    f"Table {self.options.table}, column {name!r}: {why}."
                ) from None
        return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in self.columns])

    def check_unchanged(self, connection: Connection) -> None:
        """Raise ConfigError if the sink's tables are no longer as the sink needs them.

        The server would accept the bytes of a whole number for a date, for example. Call this in
        the transaction that has written the rows, whose locks keep the tables as they are.
        """
        if _definition(connection, self.options, self.name) == self.definition:
            return
        current = find_table(connection, self.options, self.stream)
        if replace(current, definition=self.definition) != self:
            raise changed_columns(self.options.table)

    def merge_from(self, source: str, where: str = "") -> str:
        """Return the statement that copies rows from `source`, a table with the same columns.

        The statement sorts rows by their key, so that two writers never wait for each other's rows.
        """
        keys = self.options.key
        if not keys:
            names = self.column_list
            return f"INSERT INTO {self.name} ({names}) SELECT {names} FROM {source} {where}"
        key, by_bytes = ", ".join(map(quoted, keys)), ", ".join(map(self._by_bytes, keys))
        others = [name for name, _ in self.columns if name not in keys]
        update = ", ".join(f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in others)
        newest, newer = "ctid DESC", ""
        if self.options.version is not None:
            version = self._by_bytes(self.options.version)
            newest = f"{version} DESC NULLS LAST, ctid"
            newer = (
                f" WHERE EXCLUDED.{version} > present.{version} "
                f"OR present.{version} IS NULL AND EXCLUDED.{version} IS NOT NULL"
            )
        action = f"UPDATE SET {update}{newer}" if others else "NOTHING"
        return (
            f"INSERT INTO {self.name} AS present ({self.column_list}) "
            f"SELECT DISTINCT ON ({by_bytes}) {self.column_list} FROM {source} {where} "
            f"ORDER BY {by_bytes}, {newest} ON CONFLICT ({key}) DO {action}"
        )

    def _by_bytes(self, name: str) -> str:
        """Return a column for comparisons. Texts compare by bytes as in Spark, in any collation."""
        kind = dict(self.columns)[name].kind
        return quoted(name) + (' COLLATE "C"' if kind.startswith(("text", "char")) else "")


def find_table(
    connection: Connection, options: PostgresOptions, columns: Sequence[tuple[str, str]]
) -> TargetTable:
    """Return the table that the sink writes a stream to.

    `columns` has the name and Spark type of each column of the stream. Raises ConfigError if the
    table does not exist, if a column does not fit, or if a table of the sink could lose rows or
    take different keys for equal.
    """
    table, key, name = options.table, options.key, full_name(connection, options.table)
    # Ask for the hash first, so that a later change is not missed.
    definition = _definition(connection, options, name)
    _check_tables(connection, _tables(options, name))
    table_columns = {row[0]: row[1:] for row in connection.execute(_COLUMNS, [name])}
    names = [column for column, _ in columns]
    check_names(table, {column: details[2] for column, details in table_columns.items()}, names)
    check_deciding(options, names)
    encodings = []
    for column, spark in columns:
        base, modifier, _ = table_columns[column]
        with fitting_column(column, table):
            encode = encoding(spark, base, modifier)
            if column in (*key, options.version):
                check_compared(base, in_key=column in key)
                encode = replace(encode, is_compared=True)
        encodings.append((column, encode))
    _check_key(connection, str(options.markers), MARKERS_KEY)
    if key:
        _check_key(connection, table, key)
    return TargetTable(
        options=options,
        name=name,
        stream=tuple(columns),
        columns=tuple(encodings),
        definition=definition,
    )


def _tables(options: PostgresOptions, name: str) -> list[str]:
    return [each for each in (name, options.markers, options.quarantine) if each is not None]


def _definition(connection: Connection, options: PostgresOptions, name: str) -> int:
    [(digest,)] = connection.execute(_HASH, {"tables": _tables(options, name)}).fetchall()
    return int(digest)


def _check_tables(connection: Connection, tables: Sequence[str]) -> None:
    unsafe = connection.execute(_UNSAFE, {"tables": tables}).fetchone()
    if unsafe is not None:
        table, part, kind = unsafe
        what = f"Partition {part} of table" if part else "Table"
        why = _REFUSED.get(kind, "is not a table. Name a table").format(part or table)
        raise ConfigError(f"{what} {table} {why}, and start the query again.")


def _check_key(connection: Connection, table: str, key: Sequence[str]) -> None:
    columns = ", ".join(map(quoted, key))
    row = connection.execute(_KEY_INDEXES, {"table": table, "key": list(key)}).fetchone()
    if row is None:
        raise ConfigError(
            f"Table {table} has no unique index over the key ({columns}). One with WHERE, an "
            f"expression or DEFERRABLE does not count. Run ALTER TABLE {table} ADD PRIMARY KEY "
            f"({columns}), and start the query again."
        )
    index, column, how = row
    if column is not None:
        raise ConfigError(
            f"The unique index {index} over the key of table {table} compares by {how}, which may "
            f"take different values for equal. Run ALTER TABLE {table} ALTER COLUMN {column} "
            f'COLLATE "C" (or DROP INDEX {index}, if only the index compares so), and start again.'
        )


def markers_table(connection: Connection, options: PostgresOptions) -> str:
    """Return the option markers, or else the default name in the schema of the target table."""
    if options.markers is not None:
        return options.markers
    return f"{quoted(_find(connection, options.table)[0])}.dedup_markers"


def full_name(connection: Connection, table: str) -> str:
    """Return the name of a table with its schema, quoted for SQL."""
    return ".".join(map(quoted, _find(connection, table)))


def _find(connection: Connection, table: str) -> tuple[str, str]:
    row: tuple[str, str] | None = connection.execute(_FIND, [table]).fetchone()
    if row is None:
        raise ConfigError(
            f"Table {table} does not exist at this dsn, or this user may not see it. Create it "
            "(dedup.sinks.postgres_ddl writes the statement), or correct the option table."
        )
    return row


def make_own_table(
    connection: Connection, name: str, columns: Mapping[str, str], key: Sequence[str] = ()
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
    return full_name(connection, name)

"""A table keeps each row once, at the start and while the query runs, or the query stops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import types as T  # noqa: N812

from dedup.errors import ConfigError, DataError
from dedup.sinks import postgres_ddl
from dedup.sinks.columns import Unsuitable
from dedup.sinks.postgres.columns import check_compared
from dedup.sinks.postgres.options import postgres_options
from dedup.sinks.postgres.sink import ready
from tests.postgres.tables import Sink, batch_of, once, run, write

COLUMNS = [("n", "int"), ("text", "string")]
#: A collation that the server takes for one to which different texts may be equal. The server of
#: the tests has no ICU, without which nobody can create one.
CI = (
    "CREATE COLLATION ci (locale = 'C')",
    "UPDATE pg_collation SET collisdeterministic = false WHERE oid = to_regcollation('ci')",
)
#: An operator class that takes texts for equal that differ in case.
CI_OPS = (
    "CREATE FUNCTION cmp(text, text) RETURNS int IMMUTABLE LANGUAGE sql AS "
    "$$ SELECT bttextcmp(lower($1), lower($2)) $$",
    "CREATE OPERATOR CLASS ci_ops FOR TYPE text USING btree AS "
    "OPERATOR 3 =, FUNCTION 1 cmp(text, text)",
)
VIEW = (
    "CREATE TABLE base (n int, text text)",
    "CREATE FUNCTION into_base() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN INSERT INTO base VALUES (NEW.*); RETURN NEW; END $$",
    "CREATE VIEW rows AS SELECT * FROM base",
    "CREATE TRIGGER into_base INSTEAD OF INSERT ON rows FOR EACH ROW EXECUTE FUNCTION into_base()",
)
FOREIGN = ("CREATE FOREIGN DATA WRAPPER away", "CREATE SERVER away FOREIGN DATA WRAPPER away")
PARTED = "CREATE TABLE {} (n int, text text) PARTITION BY RANGE (n)"


def made(dsn: str, folder: Path, columns: list[tuple[str, str]] = COLUMNS, **options: str) -> Any:
    given = {"dsn": dsn, "table": "rows", "checkpointLocation": str(folder), "timeout.seconds": "5"}
    return ready(postgres_options(given | options), columns)


UNSAFE = [
    (["CREATE UNLOGGED TABLE rows (n int, text text)"], "Table rows is UNLOGGED: a crash .*empty"),
    ([PARTED.format("rows"),
      "CREATE TABLE low PARTITION OF rows FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (n)",
      "CREATE UNLOGGED TABLE lowest PARTITION OF low FOR VALUES FROM (0) TO (1)"],
     "Partition lowest of table rows is UNLOGGED.*ALTER TABLE lowest SET LOGGED"),
    ([*FOREIGN, "CREATE FOREIGN TABLE rows (n int, text text) SERVER away"],
     "Table rows is a foreign table"),
    ([*FOREIGN, PARTED.format("rows"),
      "CREATE FOREIGN TABLE old PARTITION OF rows FOR VALUES FROM (0) TO (9) SERVER away"],
     "Partition old of table rows is a foreign table"),
    (VIEW, "Table rows is a view, .*triggers decide"),
    (["CREATE MATERIALIZED VIEW rows AS SELECT 1 AS n, '' AS text"], "Table rows is not a table"),
    (["CREATE SEQUENCE rows"], "Table rows is not a table"),
    (["CREATE TABLE rows (n int, text text)",
      "CREATE RULE gone AS ON INSERT TO rows DO INSTEAD NOTHING"], "has a rule for INSERT"),
]  # fmt: skip


@pytest.mark.parametrize(("statements", "why"), UNSAFE, ids=[why for _, why in UNSAFE])
def test_a_table_that_may_lose_rows_is_refused(
    database: str, tmp_path: Path, statements: list[str], why: str
) -> None:
    run(database, *statements)
    with pytest.raises(ConfigError, match=why):
        made(database, tmp_path)
    assert run(database, "SELECT to_regclass('dedup_markers')") == [(None,)]


def test_a_temporary_table_of_another_session_is_refused(dsn: str, tmp_path: Path) -> None:
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("CREATE TEMPORARY TABLE rows (n int, text text)")
        found = other.execute("SELECT pg_my_temp_schema()::regnamespace::text").fetchone()
        assert found is not None
        with pytest.raises(ConfigError, match="is temporary"):
            made(dsn, tmp_path, table=f"{found[0]}.rows", markers="markers")


@pytest.mark.parametrize("option", ["markers", "quarantine"])
@pytest.mark.parametrize("kind", ["UNLOGGED TABLE", "VIEW"])
def test_an_unlogged_table_or_a_view_for_the_sinks_own_rows_is_rejected(
    dsn: str, tmp_path: Path, option: str, kind: str
) -> None:
    run(dsn, "CREATE TABLE rows (n int, text text)", f"CREATE {kind} own AS SELECT 1 AS slot")
    with pytest.raises(ConfigError, match=r"Table own is (UNLOGGED|a view)"):
        made(dsn, tmp_path, **{option: "own"})


@pytest.mark.parametrize("part", ["PARTITION BY HASH (slot)", ""])
def test_an_existing_table_can_hold_the_markers(dsn: str, tmp_path: Path, part: str) -> None:
    run(dsn, "CREATE TABLE own (query_id text, sink text, slot int, owner uuid, marker text, "
             f"PRIMARY KEY (query_id, sink, slot)) {part}")  # fmt: skip
    if part:
        run(
            dsn, "CREATE TABLE all_of_own PARTITION OF own FOR VALUES WITH (MODULUS 1, REMAINDER 0)"
        )
    sink = Sink(dsn, tmp_path, markers="own")
    for batch_id in range(2):
        sink.batch("run1", batch_id, [batch_id])
    assert sink.numbers() == once(2)


#: Statements that make the table ``numbers`` unsafe, options of the sink, and the error.
CHANGES: list[tuple[list[str], dict[str, str], str]] = [
    (["ALTER TABLE numbers SET UNLOGGED"], {}, "Table numbers is UNLOGGED"),
    (["ALTER TABLE dedup_markers SET UNLOGGED"], {}, "Table dedup_markers is UNLOGGED"),
    (["ALTER TABLE refused SET UNLOGGED"], {"quarantine": "refused"}, "Table refused is UNLOGGED"),
    (["ALTER TABLE numbers RENAME TO base", PARTED.format("numbers"),
      "CREATE UNLOGGED TABLE low PARTITION OF numbers FOR VALUES FROM (0) TO (99)"], {},
     "Partition low of table numbers is UNLOGGED"),
    (["CREATE RULE gone AS ON INSERT TO numbers DO INSTEAD NOTHING"], {"quarantine": "refused"},
     "has a rule for INSERT"),
    (["CREATE RULE gone AS ON INSERT TO refused DO INSTEAD NOTHING"], {"quarantine": "refused"},
     "Table refused has a rule for INSERT"),
    (["ALTER TABLE numbers ALTER n TYPE bigint"], {}, "other types than when the query started"),
    (["ALTER TABLE numbers ALTER n TYPE text"], {}, "Column 'n' of the stream does not go into"),
    ([*CI, "CREATE UNIQUE INDEX other ON numbers (text COLLATE ci)"], {"key": "text"},
     'by collation ci .*DROP INDEX other'),
    ([*CI_OPS, "CREATE UNIQUE INDEX other ON numbers (text ci_ops)"], {"key": "text"},
     "compares by .*operator class ci_ops"),
    (["CREATE UNIQUE INDEX other ON numbers (text bpchar_pattern_ops)"], {"key": "text"},
     "compares by .*operator class bpchar_pattern_ops"),
    (["CREATE UNIQUE INDEX other ON dedup_markers (query_id, sink bpchar_ops, slot)"], {},
     "The unique index other over the key of table .*dedup_markers"),
    ([*CI, "ALTER TABLE numbers ALTER text TYPE text COLLATE ci"], {"key": "text"},
     'by collation ci .*ALTER COLUMN text TYPE text COLLATE "C"'),
]  # fmt: skip


@pytest.mark.parametrize(("change", "options", "why"), CHANGES, ids=[why for *_, why in CHANGES])
@pytest.mark.parametrize("mode", ["", "atomic"])
def test_a_table_that_becomes_unsafe_stops_the_query(
    dsn: str, tmp_path: Path, change: list[str], options: dict[str, str], why: str, mode: str
) -> None:
    """Transactions of tasks and of the driver raise the error of a new start."""
    run(dsn, "CREATE TABLE numbers (n int, text text UNIQUE)",
        "CREATE RULE one AS ON DELETE TO numbers DO ALSO SELECT 1")  # fmt: skip
    mode = mode or ("upsert" if "key" in options else "append")
    sink = Sink(dsn, tmp_path, mode=mode, **options)
    write_texts(sink, 0, ["a"])
    write_texts(sink, 1, ["b"])
    run(dsn, *change)
    before = run(dsn, "SELECT * FROM numbers ORDER BY text")
    with pytest.raises(ConfigError, match=why):
        write_texts(sink, 2, ["c"])
    assert run(dsn, "SELECT * FROM numbers ORDER BY text") == before
    if "other types" not in why:
        with pytest.raises(ConfigError, match=why):
            Sink(dsn, tmp_path, mode=mode, **options)


def write_texts(sink: Sink, batch_id: int, texts: list[str]) -> None:
    rows = pa.record_batch({"n": pa.array(range(len(texts)), pa.int32()), "text": texts})
    sink.work.complete([sink.write("run1", batch_id, 0, iter([rows]))])


@pytest.mark.parametrize(
    ("options", "change", "why"),
    [
        ({"mode": "upsert", "key": "text"}, "CREATE UNIQUE INDEX ON numbers (text COLLATE ci)",
         "by collation ci"),
        ({}, "ALTER TABLE numbers ATTACH PARTITION more FOR VALUES IN ('c')",
         "Partition more of table numbers is UNLOGGED"),
    ],
)  # fmt: skip
def test_a_change_of_the_table_within_a_transaction_stops_the_query(
    dsn: str, tmp_path: Path, options: dict[str, str], change: str, why: str
) -> None:
    """The transaction checks at its end, because its locks do not prevent these changes."""
    unique, parts = ("UNIQUE", "") if options else ("", "PARTITION BY LIST (text)")
    run(dsn, *CI, f"CREATE TABLE numbers (n int, text text {unique}) {parts}",
        "CREATE UNLOGGED TABLE more (n int, text text)")  # fmt: skip
    if parts:
        run(dsn, "CREATE TABLE most PARTITION OF numbers FOR VALUES IN ('a', 'b')")
    sink = Sink(dsn, tmp_path, **options)
    write_texts(sink, 0, ["a"])

    def rows() -> Iterator[pa.RecordBatch]:
        yield batch_of([1], "b")
        run(dsn, change)
        yield batch_of([2], "b")

    with pytest.raises(ConfigError, match=why):
        sink.write("run1", 1, 0, rows())
    assert run(dsn, "SELECT text FROM numbers") == [("a",)]


def test_a_change_that_loses_nothing_does_not_stop_the_query(dsn: str, tmp_path: Path) -> None:
    run(dsn, "CREATE TABLE numbers (n int, text text UNIQUE) PARTITION BY HASH (text)",
        "CREATE TABLE p0 PARTITION OF numbers FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
        "CREATE TABLE p1 PARTITION OF numbers FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
    )  # fmt: skip
    sink = Sink(dsn, tmp_path, mode="upsert", key="text")
    changes = [
        "ALTER TABLE numbers ADD COLUMN later int",
        "CREATE UNIQUE INDEX ON numbers (text) INCLUDE (n)",
        "CREATE UNIQUE INDEX ON numbers (text text_pattern_ops)",
        "CREATE UNIQUE INDEX ON numbers (text, n)",
        "ALTER TABLE numbers DETACH PARTITION p1; "
        "CREATE TABLE p2 PARTITION OF numbers FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
        "CREATE RULE none AS ON INSERT TO p0 DO INSTEAD NOTHING",  # never for rows of numbers
        "ANALYZE numbers",
    ]
    for batch_id, change in enumerate(changes):
        sink.batch("run1", batch_id, [batch_id])
        run(dsn, change)
    write_texts(sink, len(changes), ["Z", "z"])
    assert {("Z",), ("z",)} <= set(run(dsn, "SELECT text FROM numbers"))


KEYS = [
    ("string", "text", ["a", "A"]),
    ("string", 'text COLLATE "POSIX"', ["a", "a "]),
    ("string", "varchar(3)", ["a", "a "]),
    ("string", "named", ["e\u0301", "é"]),
    ("string", "mood", ["sad", "Sad"]),
    ("string", "uuid", ["00000000-0000-0000-0000-00000000000a"]),
    ("binary", "bytea", [b"a", b"a\0"]),
    ("boolean", "boolean", [True, False]),
    ("array<string>", "text[]", [["a"], ["a", None], []]),
]  # fmt: skip


@pytest.mark.parametrize(("spark", "kind", "values"), KEYS, ids=[kind for _, kind, _ in KEYS])
@pytest.mark.parametrize("mode", ["upsert", "atomic"])
def test_different_keys_are_different_rows(
    dsn: str, tmp_path: Path, spark: str, kind: str, values: list[Any], mode: str
) -> None:
    run(dsn, "CREATE DOMAIN named AS text; CREATE TYPE mood AS ENUM ('sad', 'Sad')",
        f"CREATE TABLE rows (k {kind}, n int, PRIMARY KEY (n, k))")  # fmt: skip
    rows = pa.record_batch({"k": values, "n": pa.array([1] * len(values), pa.int32())})
    write(dsn, tmp_path, [("k", spark), ("n", "int")], rows, mode=mode, key="n,k")
    assert run(dsn, "SELECT count(*) FROM rows") == [(len(values),)]


@pytest.mark.parametrize(
    ("spark", "kind"),
    [("double", "double precision"), ("float", "real"), ("string", "jsonb"),
     ("interval day to second", "interval"), ("array<double>", "double precision[]")],
)  # fmt: skip
def test_a_type_that_treats_different_values_as_equal_is_rejected_as_a_key(
    dsn: str, tmp_path: Path, spark: str, kind: str
) -> None:
    run(dsn, f"CREATE TABLE rows (k {kind} PRIMARY KEY)")
    with pytest.raises(ConfigError, match=r"Column 'k' .*part of the key.*column TYPE text"):
        made(dsn, tmp_path, [("k", spark)], mode="upsert", key="k")
    made(dsn, tmp_path, [("k", spark)])  # in mode append it is no key


def test_postgres_ddl_refuses_a_key_that_the_sink_refuses() -> None:
    schema = T.StructType([T.StructField("k", T.DoubleType())])
    assert "double precision" in postgres_ddl(schema, "t")
    with pytest.raises(ConfigError, match=r"Column 'k' .*part of the key"):
        postgres_ddl(schema, "t", key="k")


@pytest.mark.parametrize("kind", ["json", "jsonb", "integer[]"])
def test_a_version_whose_order_differs_from_spark_is_rejected(kind: str) -> None:
    with pytest.raises(Unsuitable, match=r"orders .* otherwise than Spark"):
        check_compared(kind, in_key=False)
    check_compared("double precision", in_key=False)


def test_texts_are_compared_by_bytes_under_any_collation(dsn: str, tmp_path: Path) -> None:
    """The test checks the statement, because its server has only one order of texts."""
    run(dsn, "CREATE TABLE rows (k text PRIMARY KEY, v varchar, n int)")
    columns = [("k", "string"), ("v", "string"), ("n", "int")]
    for key, version in (("k", "v"), ("k", "n")):
        table = made(dsn, tmp_path, columns, mode="upsert", key=key, version=version).custom.table
        statement = table.merge_from("incoming")
        assert 'DISTINCT ON ("k" COLLATE "C")' in statement
        assert ('EXCLUDED."v" COLLATE "C" > present."v" COLLATE "C"' in statement) == (
            version == "v"
        )
        assert '"n" COLLATE' not in statement


@pytest.mark.parametrize("options", [{"key": "k"}, {"key": "n", "version": "k"}])
def test_a_second_spelling_of_a_uuid_is_refused(
    dsn: str, tmp_path: Path, options: dict[str, str]
) -> None:
    """Otherwise two IDs of the stream would be one key."""
    run(dsn, "CREATE TABLE rows (n int UNIQUE, k uuid UNIQUE)")
    text = "00112233-4455-6677-8899-aabbccddeeff"
    rows = pa.record_batch({"n": pa.array([1, 2], pa.int32()), "k": [text, text.upper()]})
    columns = [("n", "int"), ("k", "string")]
    with pytest.raises(DataError, match=r"'k': .*EEFF' is not a UUID in lower case"):
        write(dsn, tmp_path, columns, rows, mode="upsert", **options)
    assert run(dsn, "SELECT * FROM rows") == []


@pytest.mark.parametrize(
    "index",
    ["(n)", "(n, text)", "(lower(text))", "(text, lower(text))", "(text) WHERE n > 0", None],
)
def test_a_key_needs_a_unique_index_that_on_conflict_accepts(
    dsn: str, tmp_path: Path, index: str | None
) -> None:
    run(dsn, "CREATE TABLE rows (n int, text text)")
    run(dsn, f"CREATE UNIQUE INDEX ON rows {index}" if index else
        "ALTER TABLE rows ADD UNIQUE (text) DEFERRABLE")  # fmt: skip
    with pytest.raises(ConfigError, match=r'key \("text"\).*ALTER TABLE rows ADD PRIMARY KEY'):
        made(dsn, tmp_path, mode="upsert", key="text")
    with psycopg.connect(dsn) as connection, pytest.raises(psycopg.Error):
        connection.execute("INSERT INTO rows VALUES (1, 'a') ON CONFLICT (text) DO NOTHING")


def test_a_second_unique_index_never_replaces_a_row(dsn: str, tmp_path: Path) -> None:
    run(dsn, "CREATE TABLE numbers (n int PRIMARY KEY, text text)")
    sink = Sink(dsn, tmp_path, mode="upsert", key="n")
    write_texts(sink, 0, ["a"])
    run(dsn, "CREATE UNIQUE INDEX ON numbers (text)")
    with pytest.raises(DataError, match=r"Key \(text\)=\(a\) already exists"):
        write_texts(sink, 1, ["a", "a"])
    assert run(dsn, "SELECT * FROM numbers") == [(0, "a")]


def test_a_key_that_the_stream_lacks_is_refused(dsn: str, tmp_path: Path) -> None:
    run(dsn, "CREATE TABLE rows (n int PRIMARY KEY, text text, k int UNIQUE)")
    with pytest.raises(ConfigError, match=r"no column 'k' of the options .*; it has n, text"):
        made(dsn, tmp_path, mode="upsert", key="k")

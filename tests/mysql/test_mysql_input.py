"""Options, tables, keys and records that do not fit: an error that names them, nothing written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T  # noqa: N812

from dedup import mysql_ddl, mysql_sink
from dedup.errors import ConfigError, DataError, DedupError, MissingExtraError, SinkError
from dedup.sinks.database import forget_connections
from dedup.sinks.mysql import tables
from dedup.sinks.mysql.options import mysql_options
from dedup.testing.sinks import once
from tests.mysql.server import Server
from tests.mysql.tables import Sink, Where, batch_of, made, run, write
from tests.postgres.server import free_port
from tests.support.needs import long, some_long

COLUMNS = [("n", "int"), ("text", "string")]
VERSIONED = [("n", "int"), ("v", "int"), ("text", "string")]
MAKE = "CREATE TABLE t (n int NOT NULL PRIMARY KEY, text varchar(3) CHARACTER SET utf8mb4)"
SERVER = {"mysql.host": "h", "table": "t", "checkpointLocation": "c"}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"table": ""}, "option table is missing"),
        ({"tabel": "x"}, "Did you mean table?"),
        ({"mode": "merge"}, "append, upsert, atomic"),
        ({"mode": "upsert"}, "needs the option key"),
        ({"key": "n"}, "append only adds rows"),
        ({"version": "v"}, "give the option key"),
        ({"mode": "upsert", "key": "n", "version": "n"}, "cannot be a column of the key"),
        ({"table": "t; DROP TABLE t"}, "must be a name as in SQL"),
        ({"markers": "`m"}, "must be a name as in SQL"),
        ({"mysql.prot": "1"}, r"The option mysql\.prot is unknown.*password, port"),
        ({"mysql.init_command": "x"}, "is unknown"),
        ({"mysql.port": "x"}, r"mysql\.port='x' must be a whole number"),
        ({"mysql.ssl_verify_cert": "yes"}, "must be true or false"),
        ({"timeout.seconds": "0"}, "from 1 to 3600"),
        ({"checkpointLocation": ""}, "Give the option checkpointLocation"),
    ],
)
def test_options_that_cannot_be(given: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        mysql_options(SERVER | given)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(MissingExtraError, match="Writing to MySQL needs the extra 'mysql'"):
        mysql_sink({"host": "h"}, "t", checkpoint="c")


@pytest.mark.parametrize(
    ("given", "error", "why"),
    [
        ({"port": 0}, SinkError, "No connection to MySQL: .*refused"),
        ({"user": "dedup", "password": "s3cret"}, ConfigError, "Access denied for user 'dedup'"),
        ({"database": "nowhere", "user": "dedup"}, ConfigError, "Unknown database 'nowhere'"),
        long({"host": "no.such.host.invalid"}, SinkError, "No connection to MySQL"),
        ({"ssl_ca": "/no/such/file"}, ConfigError, "No such file"),
        ({"ssl_verify_cert": "true"}, ConfigError, "SSL"),
        ({"connect_timeout": "0"}, ConfigError, "connect_timeout should be"),
    ],
)  # fmt: skip
def test_servers_that_cannot_be_used(
    server: Server, tmp_path: Path, given: dict[str, Any], error: type[DedupError], why: str
) -> None:
    where = server.by_port("mysql", server.port) | given
    where["port"] = where["port"] or free_port()
    with pytest.raises(error, match=why) as refused:
        made(where, tmp_path, COLUMNS, timeout_seconds="1")
    assert "s3cret" not in str(refused.value)


def test_the_work_of_a_sink_shows_no_password(where: Where, server: Server, tmp_path: Path) -> None:
    run(where, MAKE, "CREATE USER secret IDENTIFIED BY 's3cret€'", "GRANT ALL ON *.* TO secret")
    theirs = server.by_port(where["database"], server.port) | {
        "user": "secret",
        "password": "s3cret€",
    }
    try:
        assert "s3cret" not in repr(made(theirs, tmp_path, COLUMNS))
    finally:
        forget_connections()
        run(where, "DROP USER secret")


def test_user_and_password_from_a_file(where: Where, server: Server, tmp_path: Path) -> None:
    file = tmp_path / "my.cnf"
    file.write_text(f"[client]\nuser = root\nsocket = {where['unix_socket']}\n")
    run(where, MAKE)
    theirs = {"read_default_file": str(file), "database": where["database"]}
    write(theirs, tmp_path, COLUMNS, batch_of([1]), mode="upsert", key="n")
    assert run(where, "SELECT n FROM t") == [(1,)]


@pytest.mark.parametrize(
    ("ddl", "columns", "options", "why"),
    [
        ("SELECT 1", COLUMNS, {}, "Table t does not exist"),
        ("CREATE VIEW t AS SELECT 1 AS n", COLUMNS, {}, "t is not a table of InnoDB, but a view"),
        ("CREATE TABLE t (n int, text text) ENGINE = MyISAM", COLUMNS, {}, "of the engine MyISAM"),
        ("CREATE TABLE t (n int, text text) ENGINE = Aria", COLUMNS, {}, "of the engine Aria"),
        ("CREATE SEQUENCE t", COLUMNS, {}, "but a sequence"),
        ("CREATE TABLE t (n int)", COLUMNS, {}, "has no column 'text'; it has n"),
        ("CREATE TABLE t (n int, `Text` text)", COLUMNS, {}, "no column 'text'; it has 'Text'"),
        (MAKE, [("text", "string")], {}, "Column 'n' of table t must have a value"),
        (MAKE, COLUMNS, {"markers": "m"}, "`m` is not a table of InnoDB"),
        (MAKE, COLUMNS, {"mode": "upsert", "key": "x"}, "The stream has no column 'x' of the opt"),
        (MAKE, COLUMNS, {"mode": "upsert", "key": "n", "version": "v"}, "has no column 'v'"),
    ],
)  # fmt: skip
def test_tables_that_do_not_fit(
    where: Where, tmp_path: Path, ddl: str, columns: list[tuple[str, str]],
    options: dict[str, str], why: str,
) -> None:  # fmt: skip
    run(where, ddl, "CREATE TABLE m (n int) ENGINE = MyISAM")
    with pytest.raises(ConfigError, match=why):
        made(where, tmp_path, columns, **options)


def test_a_table_without_a_database(where: Where, tmp_path: Path) -> None:
    run(where, MAKE)
    nowhere = {name: value for name, value in where.items() if name != "database"}
    with pytest.raises(ConfigError, match=r"Table t has no database: give .*mysql\.database"):
        made(nowhere, tmp_path, COLUMNS)
    write(nowhere, tmp_path, COLUMNS, batch_of([1]), table=f"{where['database']}.t",
          mode="upsert", key="n")  # fmt: skip
    assert run(where, "SELECT n FROM t") == [(1,)]


def test_defaults_and_generated_values(where: Where, tmp_path: Path) -> None:
    run(where, "CREATE TABLE t (i bigint AUTO_INCREMENT PRIMARY KEY, n int, d int NOT NULL "
               "DEFAULT 7, g int AS (n + 1), e datetime NOT NULL DEFAULT now())")  # fmt: skip
    write(where, tmp_path, [("n", "int")], pa.record_batch({"n": pa.array([-1], pa.int32())}))
    assert run(where, "SELECT i, n, d, g FROM t") == [(1, -1, 7, 0), (2, -1, 7, 0)]


def test_a_zero_stays_a_zero(where: Where, tmp_path: Path) -> None:
    """By default the server gives a column with AUTO_INCREMENT the next number instead."""
    run(where, "CREATE TABLE t (n int AUTO_INCREMENT PRIMARY KEY, text text CHARACTER SET utf8mb4)")
    write(where, tmp_path, COLUMNS, batch_of([0, 5]), mode="upsert", key="n")
    assert run(where, "SELECT n FROM t ORDER BY n") == [(0,), (5,)]


def test_names_with_quotes_and_percent_signs(where: Where, tmp_path: Path) -> None:
    run(where, "CREATE TABLE `T``%s``` (`n%s` int PRIMARY KEY, `%(x)``s.` text CHARACTER SET "
               "utf8mb4)", "CREATE TABLE `t``%s``` (other int)")  # fmt: skip
    columns = [("n%s", "int"), ("%(x)`s.", "string")]
    named = {"table": "`T``%s```", "key": "n%s", "markers": "`m``%m.m```"}
    for mode in ("upsert", "atomic"):
        rows = batch_of([1], mode).rename_columns([name for name, _ in columns])
        write(where, tmp_path / mode, columns, rows, mode=mode, name=mode, **named)
        assert run(where, "SELECT * FROM `T``%s```") == [(1, mode)]
    assert len(run(where, "SELECT * FROM `m``%m.m```")) > 1


def test_a_partitioned_table(where: Where, tmp_path: Path) -> None:
    run(where, f"{MAKE} PARTITION BY RANGE (n) (PARTITION low VALUES LESS THAN (10))")
    write(where, tmp_path, COLUMNS, batch_of([1, 2]), mode="upsert", key="n")
    assert run(where, "SELECT count(*) FROM t PARTITION (low)") == [(2,)]
    with pytest.raises(DataError, match=r'Table has no partition .*record is {"n": 10'):
        write(where, tmp_path, COLUMNS, batch_of([2, 10]), mode="upsert", key="n", name="other")


BAD = [
    ([1, None], ["a", "b"], r"column 'n': a record has no value.*\"n\": null"),
    ([1, 1], ["a", "b"], r"Duplicate entry '1' for key 'PRIMARY'.*\"n\": 1, \"text\": \"b\""),
    ([1, 2], ["a", "abcd"], r"4 characters, and the column takes 3.*\"n\": 2, \"text\": \"abcd"),
    ([1, 2], ["a", "bad"], r"CONSTRAINT `no_bad` failed.*\"n\": 2, \"text\": \"bad\""),
    ([1, 2], ["a", "sig"], r"this is the trigger.*\"n\": 2, \"text\": \"sig\""),
    ([1, 404], ["a", "b"], r"foreign key constraint fails.*\"n\": 404"),
]
TRIGGER = """
CREATE TRIGGER tg BEFORE INSERT ON t FOR EACH ROW
IF NEW.text = 'sig' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'this is the trigger'; END IF
"""


@pytest.mark.parametrize(("numbers", "texts", "why"), BAD, ids=lambda each: str(each)[:20])
@pytest.mark.parametrize("batch_id", some_long([0, 1], 1))
def test_records_that_the_table_does_not_take(
    where: Where, tmp_path: Path, numbers: list[int | None], texts: list[str], why: str,
    batch_id: int, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The driver's first micro-batch and a task's later one. A statement has many rows or one."""
    run(where, MAKE, "ALTER TABLE t ADD CONSTRAINT no_bad CHECK (text <> 'bad')", TRIGGER,
        "CREATE TABLE p (n int PRIMARY KEY)", "INSERT INTO p VALUES (1), (2), (9), (20), (21)",
        "ALTER TABLE t ADD FOREIGN KEY (n) REFERENCES p (n)")  # fmt: skip
    sink = Sink(where, tmp_path)
    sink.work = made(where, tmp_path, COLUMNS)
    if batch_id:
        monkeypatch.setattr(tables, "_STATEMENT_BYTES", 200)
        sink.batch("run1", 0, [9])
    first = pa.record_batch({"n": pa.array([20, 21], pa.int32()), "text": ["x", "y"]})
    rows = pa.record_batch({"n": pa.array(numbers, pa.int32()), "text": texts})
    with pytest.raises(DataError, match=f"Table t[:,].*{why}") as rejected:
        sink.finish([sink.send("run1", batch_id, 0, iter([first, rows]))])
    assert rejected.value.remedy == "rejected-rows"
    assert run(where, "SELECT n FROM t WHERE n <> 9") == []
    sink.finish([sink.send("run1", batch_id, 0, iter([first]))])
    assert run(where, "SELECT n FROM t WHERE n <> 9") == [(20,), (21,)]


def test_long_records(where: Where, tmp_path: Path) -> None:
    """Statements are divided; a single record may be as long as the server takes."""
    run(where, "CREATE TABLE t (n int, text longtext CHARACTER SET utf8mb4)")
    forget_connections()
    run(where, "SET GLOBAL max_allowed_packet = 4194304")
    try:
        texts = ["🐍" * 100_000, "\\'" * 900_000, "x" * 4_194_250, "", "y" * 1_048_576] * 2
        rows = pa.record_batch({"n": pa.array(range(10), pa.int32()), "text": texts})
        with pytest.raises(DataError, match=r"max_allowed_packet is 4,194,304\. The .*\"n\": 2"):
            write(where, tmp_path, COLUMNS, rows)
        assert run(where, "SELECT * FROM t") == []
        fit = rows.filter(pa.array([n % 5 != 2 for n in range(10)]))
        write(where, tmp_path, COLUMNS, fit)
        found = run(where, "SELECT text FROM t WHERE n <> 2 ORDER BY n")
        assert [row[0] for row in found[::2]] == fit["text"].to_pylist()
    finally:
        forget_connections()
        run(where, "SET GLOBAL max_allowed_packet = 16777216")


CHANGES = ["MODIFY n decimal(4,0)", "MODIFY n float", "MODIFY text char(9)", "DROP COLUMN text",
           "MODIFY n int NOT NULL", "ADD COLUMN new int NOT NULL"]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("batch_id", some_long([0, 1], 1))
def test_a_table_that_changes_under_the_query(
    where: Where, tmp_path: Path, change: str, batch_id: int
) -> None:
    """The server would round decimals and times, and cut blanks, with a note or none."""
    sink = Sink(where, tmp_path)
    for number in range(batch_id):
        sink.batch("run1", number, [number])
    run(where, f"ALTER TABLE numbers {change}")
    with pytest.raises(ConfigError, match=r"have other types|Unknown column 'text'|'new' doesn't"):
        sink.batch("run1", batch_id, [5])
    assert len(run(where, "SELECT * FROM numbers")) == batch_id


def test_a_column_that_is_added_does_no_harm(where: Where, tmp_path: Path) -> None:
    sink = Sink(where, tmp_path)
    sink.batch("run1", 0, [0])
    run(where, "ALTER TABLE numbers ADD COLUMN more int FIRST")
    sink.batch("run1", 1, [1])
    assert sink.numbers() == once(2)


UTF8 = "CHARACTER SET utf8mb4 COLLATE"


@pytest.mark.parametrize(
    ("ddl", "key", "why"),
    [
        ("c varchar(9), n int", "n", "has no unique index over the key"),
        ("c varchar(9), n int, UNIQUE (n, c)", "n", "has no unique index over the key"),
        ("c text, n int, UNIQUE (c(5))", "c", "has no unique index over the key"),
        ("c varchar(9), n int PRIMARY KEY, UNIQUE other (c)", "n", "another unique index, other"),
        *[
            (f"n int, c varchar(9) {UTF8} {collation} PRIMARY KEY", "c",
             f"has the collation {collation}, which takes different keys for the same")
            for collation in ("utf8mb4_general_ci", "utf8mb4_bin", "utf8mb4_unicode_nopad_ci",
                              "utf8mb4_uca1400_as_cs", "utf8mb4_0900_bin")
        ],
        (f"n int, c text {UTF8} utf8mb4_general_ci, UNIQUE (c)", "c", "has the collation"),
    ],
)  # fmt: skip
def test_keys_that_would_merge_rows(
    where: Where, tmp_path: Path, ddl: str, key: str, why: str
) -> None:
    run(where, f"CREATE TABLE t ({ddl}) CHARACTER SET utf8mb4")
    with pytest.raises(ConfigError, match=why):
        made(where, tmp_path, [("c", "string"), ("n", "int")], mode="upsert", key=key)


KEYS = ["a", "A", "a ", "", " ", "á", "a\u0301", "ß", "ss", "\0", "a\0", "a\t", "🐍", "İ", "i̇"]


@pytest.mark.parametrize("mode", ["upsert", "atomic"])
def test_the_table_of_mysql_ddl_keeps_keys_apart(where: Where, tmp_path: Path, mode: str) -> None:
    schema = T.StructType([T.StructField("c", T.StringType()), T.StructField("b", T.BinaryType()),
                           T.StructField("n", T.IntegerType())])  # fmt: skip
    statement = mysql_ddl(schema, "t", server="mariadb", key=["c", "b"])
    run(where, statement)
    keys = [(c, b) for c in KEYS for b in (b"a", b"A", b"a ", b"a\0")]
    rows = pa.record_batch({"c": [c for c, _ in keys], "b": [b for _, b in keys],
                            "n": pa.array(range(len(keys)), pa.int32())})  # fmt: skip
    columns = [(field.name, field.dataType.simpleString()) for field in schema]
    write(where, tmp_path, columns, rows, mode=mode, key="c,b")
    assert [row[:2] for row in run(where, "SELECT c, b, n FROM t ORDER BY n")] == keys


def test_a_key_without_a_value_is_refused(where: Where, tmp_path: Path) -> None:
    """Nulls are all different to a unique index, so each replay would add the row once more."""
    run(where, "CREATE TABLE t (n int UNIQUE, text text CHARACTER SET utf8mb4)")
    with pytest.raises(
        DataError, match=r"column 'n': a record has no value, .* or of the key.*nul"
    ):
        write(where, tmp_path, COLUMNS, batch_of([1, None]), mode="upsert", key="n")
    assert run(where, "SELECT * FROM t") == []


def versions(rows: list[tuple[int, Any, str]], kind: pa.DataType) -> pa.RecordBatch:
    numbers, found, texts = zip(*rows, strict=True)
    return pa.record_batch(
        {"n": pa.array(numbers, pa.int32()), "v": pa.array(found).cast(kind), "text": texts}
    )


KINDS = [("int", "int", pa.int32()), ("decimal(22,2)", "decimal(22,2)", pa.decimal128(22, 2)),
         ("timestamp", "datetime(6)", pa.timestamp("us", "UTC"))]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[0])
def test_the_newest_version_stays(
    where: Where, tmp_path: Path, kind: tuple[str, str, pa.DataType]
) -> None:
    spark, column, arrow = kind
    run(where, f"CREATE TABLE t (v {column}, n int PRIMARY KEY, text text CHARACTER SET utf8mb4)")
    there = versions([(1, 5, "there"), (2, 5, "there"), (3, None, "there"), (4, 5, "there"),
                      (7, 5, "there"), (8, None, "there")], arrow)  # fmt: skip
    rows = versions(
        [(1, 4, "older"), (2, 6, "newer"), (3, 1, "first"), (4, None, "none"), (5, 1, "one"),
         (5, 3, "three"), (5, 2, "two"), (6, None, "none"), (6, 1, "one"), (7, 5, "same"),
         (8, None, "none"), (9, 2, "first"), (9, 2, "last"), (10, None, "first"),
         (10, None, "last")], arrow,
    )  # fmt: skip
    columns = [("n", "int"), ("v", spark), ("text", "string")]
    options = {"mode": "upsert", "key": "n", "version": "v"}
    write(where, tmp_path / "there", columns, there, name="there", **options)
    write(where, tmp_path, columns, rows, **options)
    assert run(where, "SELECT n, text FROM t ORDER BY n") == [
        (1, "there"), (2, "newer"), (3, "first"), (4, "there"), (5, "three"), (6, "one"),
        (7, "there"), (8, "there"), (9, "first"), (10, "first"),
    ]  # fmt: skip


def test_without_a_version_the_last_row_stays(where: Where, tmp_path: Path) -> None:
    run(where, "CREATE TABLE t (n int PRIMARY KEY, v int, text text CHARACTER SET utf8mb4)",
        "INSERT INTO t VALUES (1, 5, 'there')")  # fmt: skip
    rows = versions([(1, 4, "first"), (2, 1, "a"), (1, 3, "last"), (2, 0, "b")], pa.int32())
    write(where, tmp_path, VERSIONED, rows, mode="upsert", key="n")
    assert run(where, "SELECT n, text FROM t ORDER BY n") == [(1, "last"), (2, "b")]


def test_a_table_of_a_key_alone(where: Where, tmp_path: Path) -> None:
    run(where, "CREATE TABLE t (n int, text varchar(9) CHARACTER SET utf8mb4 COLLATE "
               "utf8mb4_nopad_bin, PRIMARY KEY (text, n))")  # fmt: skip
    write(where, tmp_path, COLUMNS, batch_of([1, 1, 2]), mode="upsert", key="n,text")
    assert run(where, "SELECT n FROM t ORDER BY n") == [(1,), (2,)]


def test_a_time_limit_of_the_server(where: Where, tmp_path: Path, server: Server) -> None:
    """No fault of a record."""
    sink = Sink(where, tmp_path)
    sink.batch("run1", 0, [0])
    run(where, "CREATE TRIGGER slow BEFORE INSERT ON numbers FOR EACH ROW SET NEW.n = NEW.n + "
               "sleep(1)")  # fmt: skip
    forget_connections()
    run(where, "SET GLOBAL max_statement_time = 0.2")
    try:
        with pytest.raises(SinkError, match="max_statement_time exceeded"):
            sink.task("run1", 1, 0, [1])
    finally:
        forget_connections()
        run(where, "SET GLOBAL max_statement_time = 0", "DROP TRIGGER slow")
    sink.batch("run1", 1, [1])
    assert sink.numbers() == once(2)

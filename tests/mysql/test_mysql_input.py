"""Options, tables, keys and records that do not fit: an error that names them, nothing written."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest
from pyspark.sql import types as T  # noqa: N812

from dedup.errors import ConfigError, DataError, DedupError, MissingExtraError, SinkError
from dedup.sinks import mysql_ddl, mysql_sink
from dedup.sinks.kit import database
from dedup.sinks.mysql import tables
from dedup.sinks.mysql.options import mysql_options
from dedup.testing.sinks import once
from tests.mysql.server import Server
from tests.mysql.tables import Sink, Where, as_user, batch_of, made, run, updates, write
from tests.postgres.server import free_port
from tests.support.connections import forget_connections
from tests.support.needs import long, some_long

COLUMNS = [("n", "int"), ("text", "string")]
VERSIONED = [("n", "int"), ("v", "int"), ("text", "string")]
MAKE = "CREATE TABLE t (n int NOT NULL PRIMARY KEY, text varchar(3) CHARACTER SET utf8mb4)"
UTF8 = "CHARACTER SET utf8mb4 COLLATE"
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
def test_options_that_cannot_work_are_rejected(given: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        mysql_options(SERVER | given)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_server_that_cannot_be_used_is_reported_without_the_password(
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


def test_a_user_is_read_from_an_option_file(where: Where, server: Server, tmp_path: Path) -> None:
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
        ("CREATE VIEW t AS SELECT 1 AS n", COLUMNS, {}, "t is not a table, but a view"),
        ("CREATE TABLE t (n int, text text) ENGINE = MyISAM", COLUMNS, {}, "of the engine MyISAM"),
        ("CREATE TABLE t (n int, text text) ENGINE = Aria", COLUMNS, {}, "of the engine Aria"),
        ("CREATE TABLE t (n int) ENGINE = MEMORY", COLUMNS, {}, "t is of the engine MEMORY"),
        ("CREATE SEQUENCE t", COLUMNS, {}, "t is not a table, but a sequence"),
        ("CREATE TABLE t (n int) ENGINE = MyISAM PARTITION BY HASH (n) PARTITIONS 2", COLUMNS, {},
         "ALTER TABLE t ENGINE = InnoDB"),
        ("CREATE TABLE t (n int)", COLUMNS, {}, "has no column 'text'; it has n"),
        ("CREATE TABLE t (n int, `Text` text)", COLUMNS, {}, "no column 'text'; it has 'Text'"),
        (MAKE, [("text", "string")], {}, "Column 'n' of table t must have a value"),
        (MAKE, COLUMNS, {"markers": "m"}, "`m` is of the engine MyISAM"),
        (MAKE, COLUMNS, {"mode": "upsert", "key": "x"}, "The stream has no column 'x' of the opt"),
        (MAKE, COLUMNS, {"mode": "upsert", "key": "n", "version": "v"}, "has no column 'v'"),
    ],
)  # fmt: skip
def test_tables_that_do_not_fit_are_rejected(
    where: Where, tmp_path: Path, ddl: str, columns: list[tuple[str, str]],
    options: dict[str, str], why: str,
) -> None:  # fmt: skip
    run(where, ddl, "CREATE TABLE m (n int) ENGINE = MyISAM")
    with pytest.raises(ConfigError, match=why):
        made(where, tmp_path, columns, **options)


def test_a_table_without_a_database_is_rejected(where: Where, tmp_path: Path) -> None:
    run(where, MAKE)
    nowhere = {name: value for name, value in where.items() if name != "database"}
    with pytest.raises(ConfigError, match=r"Table t has no database: give .*mysql\.database"):
        made(nowhere, tmp_path, COLUMNS)
    write(nowhere, tmp_path, COLUMNS, batch_of([1]), table=f"{where['database']}.t",
          mode="upsert", key="n")  # fmt: skip
    assert run(where, "SELECT n FROM t") == [(1,)]


def test_defaults_and_generated_values_are_filled_in(where: Where, tmp_path: Path) -> None:
    run(where, "CREATE TABLE t (i bigint AUTO_INCREMENT PRIMARY KEY, n int, d int NOT NULL "
               "DEFAULT 7, g int AS (n + 1), e datetime NOT NULL DEFAULT now())")  # fmt: skip
    write(where, tmp_path, [("n", "int")], pa.record_batch({"n": pa.array([-1], pa.int32())}))
    assert run(where, "SELECT i, n, d, g FROM t") == [(1, -1, 7, 0), (2, -1, 7, 0)]


def test_a_zero_stays_a_zero(where: Where, tmp_path: Path) -> None:
    """By default the server replaces a zero in an AUTO_INCREMENT column by the next number."""
    run(where, "CREATE TABLE t (n int AUTO_INCREMENT PRIMARY KEY, text text CHARACTER SET utf8mb4)")
    write(where, tmp_path, COLUMNS, batch_of([0, 5]), mode="upsert", key="n")
    assert run(where, "SELECT n FROM t ORDER BY n") == [(0,), (5,)]


def test_names_with_quotes_and_percent_signs_are_accepted(where: Where, tmp_path: Path) -> None:
    run(where, "CREATE TABLE `T``%s``` (`n%s` int PRIMARY KEY, `%(x)``s.` text CHARACTER SET "
               "utf8mb4)", "CREATE TABLE `t``%s``` (other int)")  # fmt: skip
    columns = [("n%s", "int"), ("%(x)`s.", "string")]
    named = {"table": "`T``%s```", "key": "n%s", "markers": "`m``%m.m```"}
    for mode in ("upsert", "atomic"):
        rows = batch_of([1], mode).rename_columns([name for name, _ in columns])
        write(where, tmp_path / mode, columns, rows, mode=mode, name=mode, **named)
        assert run(where, "SELECT * FROM `T``%s```") == [(1, mode)]
    assert len(run(where, "SELECT * FROM `m``%m.m```")) > 1


def test_rows_go_into_a_partitioned_table(where: Where, tmp_path: Path) -> None:
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
def test_a_record_that_the_table_rejects_is_reported_and_nothing_is_written(
    where: Where, tmp_path: Path, numbers: list[int | None], texts: list[str], why: str,
    batch_id: int, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """In the driver's first micro-batch and a task's later one, alone or among many rows."""
    run(where, MAKE, "ALTER TABLE t ADD CONSTRAINT no_bad CHECK (text <> 'bad')", TRIGGER,
        "CREATE TABLE p (n int PRIMARY KEY)", "INSERT INTO p VALUES (1), (2), (9), (20), (21)",
        "ALTER TABLE t ADD FOREIGN KEY (n) REFERENCES p (n)")  # fmt: skip
    sink = Sink(where, tmp_path)
    sink.work = made(where, tmp_path, COLUMNS)
    if batch_id:
        monkeypatch.setattr(tables, "_BYTES", 20)
        sink.batch("run1", 0, [9])
    first = pa.record_batch({"n": pa.array([20, 21], pa.int32()), "text": ["x", "y"]})
    rows = pa.record_batch({"n": pa.array(numbers, pa.int32()), "text": texts})
    with pytest.raises(DataError, match=f"Table t[:,].*{why}") as rejected:
        sink.finish([sink.send("run1", batch_id, 0, iter([first, rows]))])
    assert rejected.value.remedy == "rejected-rows"
    assert run(where, "SELECT n FROM t WHERE n <> 9") == []
    sink.finish([sink.send("run1", batch_id, 0, iter([first]))])
    assert run(where, "SELECT n FROM t WHERE n <> 9") == [(20,), (21,)]


def test_long_records_are_written_up_to_the_packet_size_of_the_server(
    where: Where, tmp_path: Path
) -> None:
    """The sink divides statements; one record may be as long as the server accepts."""
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


UPSERT = {"mode": "upsert", "key": "n"}
CHANGES = [
    ({}, "numbers MODIFY n decimal(4,0)", "Column 'n' .* room for 4 and 0"),
    ({}, "numbers MODIFY n float", "Column 'n' .* there float"),
    ({}, "numbers MODIFY text char(9)", "Column 'text' .* there char"),
    ({}, "numbers DROP COLUMN text", "has no column 'text'"),
    ({}, "numbers MODIFY n bigint", "columns of table numbers have other types"),
    ({}, "numbers MODIFY n int NOT NULL", "columns of table numbers have other types"),
    ({}, "numbers ADD COLUMN new int NOT NULL", "Column 'new' of table numbers must have a value"),
    ({}, "numbers ENGINE = MEMORY, MODIFY text varchar(9)", "is of the engine MEMORY"),
    ({}, "dedup_markers ENGINE = Aria", "`dedup_markers` is of the engine Aria"),
    ({}, "dedup_markers DROP PRIMARY KEY", "cannot hold markers.* primary key marker_key"),
    ({}, f"dedup_markers MODIFY marker_key varchar(200) {UTF8} utf8mb4_general_ci", "hold markers"),
    ({}, "dedup_markers MODIFY marker longtext", "columns marker_key, marker, holder of type VAR"),
    (UPSERT, "numbers ADD UNIQUE other (text(5))", "has another unique index, other"),
    (UPSERT, "numbers DROP PRIMARY KEY, ADD UNIQUE (n, text(5))", "has no unique index over the k"),
]


@pytest.mark.parametrize(("options", "change", "why"), CHANGES, ids=lambda each: str(each)[:40])
@pytest.mark.parametrize("batch_id", some_long([0, 1], 1))
def test_an_unsafe_change_of_the_table_stops_the_query_and_its_next_start(
    where: Where, tmp_path: Path, options: dict[str, str], change: str, why: str, batch_id: int
) -> None:
    """Otherwise rows would overwrite other keys, lose digits or blanks, or be repeated."""
    sink = Sink(where, tmp_path, **options)
    for number in range(batch_id):
        sink.batch("run1", number, [number])
    run(where, f"ALTER TABLE {change}")
    with pytest.raises(ConfigError, match=why):
        sink.batch("run1", batch_id, [5])
    assert len(run(where, "SELECT * FROM numbers")) == batch_id
    if "other types" not in why:
        with pytest.raises(ConfigError, match=why):
            Sink(where, tmp_path, **options)


def test_a_view_that_replaces_the_table_stops_the_query(where: Where, tmp_path: Path) -> None:
    sink = Sink(where, tmp_path)
    sink.batch("run1", 0, [0])
    run(where, "RENAME TABLE numbers TO old", "CREATE VIEW numbers AS SELECT * FROM old")
    with pytest.raises(ConfigError, match="numbers is not a table, but a view"):
        sink.batch("run1", 1, [1])


def test_a_collation_that_changes_under_the_query_stops_it(where: Where, tmp_path: Path) -> None:
    run(
        where, f"CREATE TABLE numbers (n int, text varchar(9) {UTF8} utf8mb4_nopad_bin PRIMARY KEY)"
    )
    sink = Sink(where, tmp_path, mode="upsert", key="text")
    sink.batch("run1", 0, [0])
    run(where, f"ALTER TABLE numbers MODIFY text varchar(9) {UTF8} utf8mb4_bin")
    why = r"'text' .* has the collation utf8mb4_bin in table numbers"
    with pytest.raises(ConfigError, match=why):
        sink.batch("run1", 1, [1])


HARMLESS = ["ADD COLUMN more int FIRST", "ADD INDEX (text(5))", "COMMENT 'x'", "AUTO_INCREMENT = 9",
            "ADD PARTITION PARTITIONS 2", "MODIFY text text CHARACTER SET utf8mb4 COMMENT 'x'",
            "ADD SYSTEM VERSIONING"]  # fmt: skip


@pytest.mark.parametrize("change", HARMLESS)
def test_a_change_that_the_start_would_accept_does_no_harm(
    where: Where, tmp_path: Path, change: str
) -> None:
    kind = "int AUTO_INCREMENT" if "AUTO" in change else "int"
    run(where, f"CREATE TABLE numbers (n {kind}, text text CHARACTER SET utf8mb4, PRIMARY KEY (n))"
               + " PARTITION BY HASH (n)" * ("PARTITION" in change))  # fmt: skip
    sink = Sink(where, tmp_path, mode="upsert", key="n")
    sink.batch("run1", 0, [0])
    run(where, f"ALTER TABLE numbers {change}")
    sink.batch("run1", 1, [1])
    assert sink.numbers() == once(2)


def test_a_transaction_locks_the_tables_against_changes(where: Where, tmp_path: Path) -> None:
    """It does so before the first row. `begin` checks the tables."""
    sink = Sink(where, tmp_path).work.custom
    transaction = sink.begin()
    for table in ("numbers", "dedup_markers"):
        with pytest.raises(pymysql.OperationalError, match="Lock wait timeout"):
            run(where, f"ALTER TABLE {table} NOWAIT ADD COLUMN more int NOT NULL")
    sink.rollback(transaction)
    run(where, "ALTER TABLE numbers NOWAIT ADD COLUMN more int NOT NULL")


@pytest.mark.parametrize("versioned", ["numbers", "dedup_markers"])
def test_a_system_versioned_table_of_mariadb_has_each_row_once(
    where: Where, tmp_path: Path, versioned: str
) -> None:
    sink = Sink(where, tmp_path, mode="upsert", key="n")
    run(where, f"ALTER TABLE {versioned} ADD SYSTEM VERSIONING")
    sink = Sink(where, tmp_path, mode="upsert", key="n")
    for batch_id in range(3):
        rows = [updates([batch_id, 7, 57, batch_id + 50])]
        sink.finish([sink.send("run1", batch_id, 0, rows)])
    assert sink.numbers() == once(3) + Counter([7])
    replayed = Sink(where, tmp_path, mode="upsert", key="n")
    replayed.forget()
    replayed.finish([replayed.send("run2", 2, 0, [updates([2, 7, 57, 52])])])
    assert run(where, "SELECT text FROM numbers WHERE n IN (2, 7) ORDER BY n") == [("52",), ("57",)]
    assert run(where, f"SELECT count(*) > 5 FROM {versioned} FOR SYSTEM_TIME ALL") == [(1,)]


def test_a_table_with_a_period_of_transactions_accepts_rows(where: Where, tmp_path: Path) -> None:
    """MariaDB shows the end of the period as a column of the key."""
    run(where, "CREATE TABLE t (n int PRIMARY KEY, text text CHARACTER SET utf8mb4, s bigint "
               "unsigned GENERATED ALWAYS AS ROW START, e bigint unsigned GENERATED ALWAYS AS ROW "
               "END, PERIOD FOR SYSTEM_TIME (s, e)) WITH SYSTEM VERSIONING")  # fmt: skip
    write(where, tmp_path, COLUMNS, batch_of([1, 2, 1]), mode="upsert", key="n")
    assert run(where, "SELECT n FROM t ORDER BY n") == [(1,), (2,)]
    with pytest.raises(ConfigError, match=r"Column 'e' .* the table computes this column"):
        made(where, tmp_path, [*COLUMNS, ("e", "decimal(20,0)")])


def test_a_temporary_table_that_hides_the_table_is_refused(
    where: Where, server: Server, tmp_path: Path
) -> None:
    """Rows would be lost at the end of the session."""
    run(where, MAKE)
    poor = as_user(where, f"ALL ON {where['database']}.*")
    run(where, f"SET GLOBAL init_connect = 'CREATE TEMPORARY TABLE {where['database']}.t (n int)'")
    try:
        with pytest.raises(ConfigError, match=r"A temporary table of this session hides .*`t`"):
            made(poor, tmp_path, COLUMNS)
    finally:
        run(where, "SET GLOBAL init_connect = ''")


@pytest.mark.parametrize(
    ("ddl", "key", "why"),
    [
        ("c varchar(9), n int", "n", "has no unique index over the key"),
        ("c varchar(9), n int, UNIQUE (n, c)", "n", "has no unique index over the key"),
        ("c text, n int, UNIQUE (c(5))", "c", "has no unique index over the key"),
        ("c varchar(9), n int PRIMARY KEY, UNIQUE other (c)", "n", "another unique index, other"),
        (f"n int, c varchar(9) {UTF8} utf8mb4_bin, PRIMARY KEY (n, c)", "n,c", "has the collation"),
        (f"n int, c text {UTF8} utf8mb4_general_ci, UNIQUE (c)", "c", "has the collation"),
    ],
)  # fmt: skip
def test_keys_that_would_merge_rows_are_rejected(
    where: Where, tmp_path: Path, ddl: str, key: str, why: str
) -> None:
    run(where, f"CREATE TABLE t ({ddl}) CHARACTER SET utf8mb4")
    with pytest.raises(ConfigError, match=why):
        made(where, tmp_path, [("c", "string"), ("n", "int")], mode="upsert", key=key)


@pytest.mark.parametrize("options", [{"key": "c"}, {"key": "n", "version": "c"}], ids=str)
def test_text_keys_and_versions_need_the_collation_that_compares_code_points(
    where: Where, tmp_path: Path, options: dict[str, str]
) -> None:
    """No sample of texts can prove that a collation keeps all texts apart."""
    columns = [("c", "string"), ("n", "int")]
    run(where, "CREATE TABLE t (c varchar(9) CHARACTER SET utf8mb4 NOT NULL, n int NOT NULL, "
               f"PRIMARY KEY ({options['key']}))")  # fmt: skip
    every = (
        "SELECT full_collation_name FROM information_schema.collation_character_set_applicability"
    )
    names = [name for (name,) in run(where, f"{every} WHERE character_set_name = 'utf8mb4'")]
    accepted, refused = [], {}
    for name in names:
        run(where, f"ALTER TABLE t MODIFY c varchar(9) {UTF8} {name} NOT NULL")
        try:
            made(where, tmp_path, columns, mode="upsert", **options)
            accepted.append(name)
        except ConfigError as error:
            refused[name] = str(error)
    assert accepted == ["utf8mb4_nopad_bin"]
    assert len(refused) > 100
    for name, why in refused.items():
        assert f"Column 'c' of the options key and version has the collation {name} in" in why
    run(where, why.rpartition("if there are any: ")[2])
    made(where, tmp_path, columns, mode="atomic", **options)


def test_sessions_write_to_a_server_that_is_read_only_by_default(
    where: Where, tmp_path: Path
) -> None:
    sink = Sink(where, tmp_path)
    forget_connections()
    run(where, "SET GLOBAL tx_read_only = 1")
    try:
        sink.batch("run1", 0, [0])
    finally:
        run(where, "SET GLOBAL tx_read_only = 0")
    assert len(run(where, "SELECT * FROM numbers")) == 1


def test_a_connection_is_not_kept_after_an_error(where: Where, tmp_path: Path) -> None:
    """After a switch-over the session would stay with the old server, which only reads."""
    poor = as_user(where, f"ALL ON {where['database']}.*")
    sink = Sink(poor, tmp_path)
    forget_connections()
    run(where, "SET GLOBAL read_only = 1")
    try:
        with pytest.raises(SinkError, match="--read-only"):
            sink.batch("run1", 0, [0])
        assert not database._free.get(sink.work.options.connect)
    finally:
        run(where, "SET GLOBAL read_only = 0")
    sink.batch("run2", 0, [0])
    assert len(run(where, "SELECT * FROM numbers")) == 1


def test_a_float_cannot_be_part_of_the_key(where: Where, tmp_path: Path) -> None:
    why = r"'d' of the stream does not go into table t: it is part of the key, and 0\.0 equals -0"
    schema = T.StructType([T.StructField("d", T.DoubleType()), T.StructField("n", T.IntegerType())])
    with pytest.raises(ConfigError, match=why):
        mysql_ddl(schema, "t", server="mysql", key=["n", "d"])
    run(where, "CREATE TABLE t (d double, n int, PRIMARY KEY (n, d))")
    with pytest.raises(ConfigError, match=why):
        made(where, tmp_path, [("d", "double"), ("n", "int")], mode="atomic", key="n,d")


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


def test_a_key_of_bytes_keeps_texts_apart(where: Where, tmp_path: Path) -> None:
    """This helps on servers without such a collation."""
    run(where, "CREATE TABLE t (n int, c varbinary(9) PRIMARY KEY)")
    columns, options = [("n", "int"), ("c", "string")], {"mode": "upsert", "key": "c"}
    rows = pa.record_batch({"n": pa.array(range(len(KEYS)), pa.int32()), "c": KEYS})
    write(where, tmp_path, columns, rows, **options)
    assert [row[0].decode() for row in run(where, "SELECT c FROM t ORDER BY n")] == KEYS
    long = pa.record_batch({"n": pa.array([1], pa.int32()), "c": ["é" * 5]})
    with pytest.raises(DataError, match="10 bytes, and the column takes 9"):
        write(where, tmp_path, columns, long, name="long", **options)


@pytest.mark.parametrize("kind", [f"varchar(9) {UTF8} utf8mb4_nopad_bin", "varbinary(9)"])
def test_text_versions_are_compared_by_their_bytes(where: Where, tmp_path: Path, kind: str) -> None:
    run(where, f"CREATE TABLE t (n int PRIMARY KEY, c {kind})")
    rows = pa.record_batch({"n": pa.array([1] * len(KEYS), pa.int32()), "c": KEYS})
    options = {"mode": "upsert", "key": "n", "version": "c"}
    write(where, tmp_path, [("n", "int"), ("c", "string")], rows, **options)
    found = [bytes(value) for (value,) in run(where, "SELECT CAST(c AS BINARY) FROM t")]
    assert found == [max(key.encode() for key in KEYS)]


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


def test_a_table_of_only_key_columns_accepts_rows(where: Where, tmp_path: Path) -> None:
    run(where, "CREATE TABLE t (n int, text varchar(9) CHARACTER SET utf8mb4 COLLATE "
               "utf8mb4_nopad_bin, PRIMARY KEY (text, n))")  # fmt: skip
    write(where, tmp_path, COLUMNS, batch_of([1, 1, 2]), mode="upsert", key="n,text")
    assert run(where, "SELECT n FROM t ORDER BY n") == [(1,), (2,)]


def test_a_time_limit_of_the_server_is_no_error_of_a_record(
    where: Where, tmp_path: Path, server: Server
) -> None:
    """The sink reports an error of the server, which names no record."""
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

"""What only MySQL and MariaDB have: option files, collations, versioned tables, packets, limits."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pymysql
import pytest
from pyspark.sql import types as T  # noqa: N812

from dedup.errors import ConfigError, DataError, SinkError
from dedup.sinks import mysql_ddl
from dedup.sinks.kit import database
from dedup.testing.sinks import QUERY, once
from tests.databases.database import COLUMNS, Sink, batch_of
from tests.databases.mysql import Mysql
from tests.databases.mysql_server import MysqlServer
from tests.support.connections import forget_connections
from tests.support.proxy import Harm, Proxy

MAKE = "CREATE TABLE t (n int NOT NULL PRIMARY KEY, text varchar(3))"
UPSERT = {"mode": "upsert", "key": "n"}
UTF8 = "CHARACTER SET utf8mb4 COLLATE"


# --- how to connect


def test_an_option_file_gives_user_and_password_and_no_error_shows_them(
    mysql: Mysql, tmp_path: Path
) -> None:
    mysql.run(MAKE)
    where = mysql.with_password("s3cret").where
    file = tmp_path / "my.cnf"

    def by_file(*lines: str) -> Mysql:
        file.write_text("\n".join([*lines, ""]))
        kept = {name: where[name] for name in ("host", "port", "database")}
        return Mysql({**kept, "read_default_file": str(file)}, tmp_path)

    begin = "[client]", f"user = {where['user']}"
    theirs = by_file(*begin, "password = s3cret")
    theirs.write(batch_of([1]), **UPSERT)
    assert mysql.run("SELECT n FROM t") == [(1,)]
    shown = [repr(theirs.work())]
    with pytest.raises(DataError) as rejected:
        theirs.write(batch_of([2], "four"), name="other")
    shown.append(str(rejected.value))
    forget_connections()
    for line in ("password = s3cret2", "password = s3cret€", "passwd = s3cret", "password s3cret"):
        with pytest.raises(ConfigError, match="MySQL cannot be used with the options") as refused:
            by_file(*begin, line).work()
        shown.append(str(refused.value))
    with pytest.raises(ConfigError, match="has a MissingSectionHeaderError") as refused:
        by_file("password = s3cret").work()
    shown.append(str(refused.value))
    assert not any("s3cret" in text for text in shown)


def test_a_table_without_a_database_is_rejected(mysql: Mysql, tmp_path: Path) -> None:
    mysql.run(MAKE)
    name = mysql.where["database"]
    where = {key: value for key, value in mysql.where.items() if value != name}
    nowhere = Mysql(where, tmp_path)
    with pytest.raises(ConfigError, match=r"Table t has no database: give .*mysql\.database"):
        nowhere.work()
    nowhere.write(batch_of([1]), table=f"{name}.t", **UPSERT)
    assert mysql.run("SELECT n FROM t") == [(1,)]


def test_sessions_write_to_a_server_that_is_read_only_by_default(mysql: Mysql) -> None:
    sink = Sink(mysql)
    with mysql.setting(back=0, tx_read_only=1):
        sink.batch("run1", 0, [0])
    sink.assert_once(1)


def test_a_connection_is_not_kept_after_an_error(mysql: Mysql) -> None:
    """After a switch-over the session would stay with the old server, which only reads."""
    poor = mysql.as_user(f"ALL ON {mysql.where['database']}.*")
    sink = Sink(poor)
    with mysql.setting(back=0, read_only=1):
        with pytest.raises(SinkError, match="--read-only"):
            sink.batch("run1", 0, [0])
        assert not any(database._free.values())
    sink.batch("run2", 0, [0])
    sink.assert_once(1)


def test_idle_limits_of_the_server_do_not_end_a_transaction(mysql: Mysql) -> None:
    sink = Sink(mysql)
    sink.batch("run1", 0, [0])
    names = ("wait_timeout", "idle_transaction_timeout", "idle_write_transaction_timeout",
             "idle_readonly_transaction_timeout")  # fmt: skip
    with mysql.setting(**dict.fromkeys(names, 1)):
        idle = pymysql.connect(**mysql.where)
        sink.task("run1", 1, 0, (time.sleep(n) or n for n in (2, 3)))
        with pytest.raises(pymysql.Error):  # the limits are in force
            idle.ping(reconnect=False)
    assert sink.numbers().total() == 3


def test_a_time_limit_of_the_server_is_no_error_of_a_record(mysql: Mysql) -> None:
    """The sink reports an error of the server, which names no record."""
    sink = Sink(mysql)
    sink.batch("run1", 0, [0])
    mysql.run("CREATE TRIGGER slow BEFORE INSERT ON numbers FOR EACH ROW SET NEW.n = NEW.n + "
              "sleep(1)")  # fmt: skip
    with (
        mysql.setting(back=0, max_statement_time=0.2),
        pytest.raises(SinkError, match="max_statement_time exceeded"),
    ):
        sink.task("run1", 1, 0, [1])
    mysql.run("DROP TRIGGER slow")
    sink.batch("run1", 1, [1])
    sink.assert_once(2)


def test_a_commit_whose_reply_never_comes_times_out_and_is_found(
    mysql: Mysql, mysql_server: MysqlServer
) -> None:
    """The connection stays open, so only a time limit helps."""
    with Proxy(mysql_server.port) as proxy:
        sink = Sink(mysql.by_port(proxy.port).changed(read_timeout=1))
        sink.batch("run1", 0, [0], [1])
        fault = proxy.strike(Harm.LOSE_REPLY, mysql.is_commit)
        sink.task("run1", 1, 0, [2])
        fault.wait()
        sink.batch("run1", 1, [2], [3])
        sink.assert_once(4)


# --- who owns a slot


def test_a_session_that_reuses_the_number_of_an_owner_is_not_ended(mysql: Mysql) -> None:
    """A restarted server counts sessions from 1. Here another session holds the lock."""
    sink = Sink(mysql, timeout_seconds="1")
    sink.batch("run1", 0, [0], [1])
    with pymysql.connect(**mysql.where) as bystander, pymysql.connect(**mysql.where) as stranger:
        mysql.run(f"UPDATE dedup_markers SET holder = '{bystander.thread_id()} before'")
        stranger.cursor().execute("SELECT * FROM dedup_markers FOR UPDATE")
        with pytest.raises(SinkError, match="Lock wait timeout exceeded"):
            sink.task("run1", 1, 0, [2])
        bystander.ping(reconnect=False)


def test_a_lock_of_another_user_is_named(mysql: Mysql) -> None:
    """Only the owner of a session, or an administrator, may end it."""
    sink = Sink(mysql)
    sink.batch("run1", 0, [0], [1])
    frozen = sink.work.slots(QUERY)
    frozen.acquire([0])
    frozen.slot(0).begin()
    other = Sink(mysql.as_user(f"ALL ON {mysql.where['database']}.*"))
    other.forget()
    with pytest.raises(ConfigError, match="You are not owner of thread"):
        other.batch("run2", 1, [2], [3])
    frozen.close()
    sink.assert_once(2)


# --- tables and records


def test_a_transaction_locks_the_tables_against_changes(mysql: Mysql) -> None:
    """It does so before the first row. `begin` checks the tables."""
    sink = Sink(mysql).work.custom
    transaction = sink.begin()
    for table in ("numbers", "dedup_markers"):
        with pytest.raises(pymysql.OperationalError, match="Lock wait timeout"):
            mysql.run(f"ALTER TABLE {table} NOWAIT ADD COLUMN more int NOT NULL")
    sink.rollback(transaction)
    mysql.run("ALTER TABLE numbers NOWAIT ADD COLUMN more int NOT NULL")


def test_a_temporary_table_that_hides_the_table_is_rejected(mysql: Mysql) -> None:
    """Rows would be lost at the end of the session."""
    mysql.run(MAKE)
    name = mysql.where["database"]
    poor = mysql.as_user(f"ALL ON {name}.*")
    hide = f"'CREATE TEMPORARY TABLE {name}.t (n int)'"
    with (
        mysql.setting(back="''", init_connect=hide),
        pytest.raises(ConfigError, match=r"A temporary table of this session hides .*`t`"),
    ):
        poor.work()


@pytest.mark.parametrize("versioned", ["numbers", "dedup_markers"])
def test_a_system_versioned_table_of_mariadb_has_each_row_once(
    mysql: Mysql, versioned: str
) -> None:
    sink = Sink(mysql, **UPSERT)
    mysql.run(f"ALTER TABLE {versioned} ADD SYSTEM VERSIONING")
    sink = Sink(mysql, **UPSERT)

    def publish(run_id: str, batch_id: int) -> None:
        rows = batch_of([batch_id, 7, 7, batch_id], [str(batch_id), "7", "57", f"5{batch_id}"])
        sink.publish(batch_id, rows, run_id=run_id)

    for batch_id in range(3):
        publish("run1", batch_id)
    assert sink.numbers() == once(3) + Counter([7])
    sink.forget()
    publish("run2", 2)
    newest = mysql.run("SELECT text FROM numbers WHERE n IN (2, 7) ORDER BY n")
    assert newest == [("52",), ("57",)]
    assert mysql.run(f"SELECT count(*) > 5 FROM {versioned} FOR SYSTEM_TIME ALL") == [(1,)]


def test_a_table_with_a_period_of_transactions_accepts_rows(mysql: Mysql) -> None:
    """MariaDB shows the end of the period as a column of the key."""
    mysql.run("CREATE TABLE t (n int PRIMARY KEY, text text, s bigint unsigned GENERATED ALWAYS AS "
              "ROW START, e bigint unsigned GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME "
              "(s, e)) WITH SYSTEM VERSIONING")  # fmt: skip
    mysql.write(batch_of([1, 2, 1]), **UPSERT)
    assert mysql.run("SELECT n FROM t ORDER BY n") == [(1,), (2,)]
    with pytest.raises(ConfigError, match=r"Column 'e' .* the table computes this column"):
        mysql.work([*COLUMNS, ("e", "decimal(20,0)")])


def test_a_zero_stays_a_zero(mysql: Mysql) -> None:
    """By default the server replaces a zero in an AUTO_INCREMENT column by the next number."""
    mysql.run("CREATE TABLE t (n int AUTO_INCREMENT PRIMARY KEY, text text)")
    mysql.write(batch_of([0, 5]), **UPSERT)
    assert mysql.run("SELECT n FROM t ORDER BY n") == [(0,), (5,)]


def test_long_records_are_written_up_to_the_packet_size_of_the_server(mysql: Mysql) -> None:
    """The sink divides statements; one record may be as long as the server accepts."""
    mysql.run("CREATE TABLE t (n int, text longtext)")
    texts = ["🐍" * 100_000, "\\'" * 900_000, "x" * 4_194_250, "", "y" * 1_048_576] * 2
    rows = batch_of(range(10), texts)
    with mysql.setting(back=16_777_216, max_allowed_packet=4_194_304):
        with pytest.raises(DataError, match=r"max_allowed_packet is 4,194,304\. The .*\"n\": 2"):
            mysql.write(rows)
        assert mysql.run("SELECT * FROM t") == []
        fit = rows.filter(pa.array([n % 5 != 2 for n in range(10)]))
        mysql.write(fit)
    found = mysql.run("SELECT text FROM t WHERE n <> 2 ORDER BY n")
    assert [row[0] for row in found[::2]] == fit["text"].to_pylist()


# --- keys and types


@pytest.mark.parametrize(
    ("options", "step"),
    [({"key": "c"}, 1), ({"key": "n", "version": "c"}, 20)],
    ids=["key", "version"],
)
def test_text_keys_and_versions_need_the_collation_that_compares_code_points(
    mysql: Mysql, options: dict[str, str], step: int
) -> None:
    """No sample of texts can prove that a collation keeps all texts apart.

    One check looks at keys and versions, so a version is tried with some collations only.
    """
    columns = [("c", "string"), ("n", "int")]
    mysql.run(f"CREATE TABLE t (c varchar(9), n int, PRIMARY KEY ({options['key']}))")
    every = (
        "SELECT full_collation_name FROM information_schema.collation_character_set_applicability"
    )
    names = [name for (name,) in mysql.run(f"{every} WHERE character_set_name = 'utf8mb4'")]
    accepted, rejected = [], {}
    for name in sorted({*names[::step], "utf8mb4_nopad_bin"}):
        mysql.run(f"ALTER TABLE t MODIFY c varchar(9) {UTF8} {name} NOT NULL")
        try:
            mysql.work(columns, mode="upsert", **options)
            accepted.append(name)
        except ConfigError as error:
            rejected[name] = str(error)
    assert accepted == ["utf8mb4_nopad_bin"]
    assert len(rejected) > 100 // step
    for name, why in rejected.items():
        assert f"Column 'c' of the options key and version has the collation {name} in" in why
    mysql.run(why.rpartition("if there are any: ")[2])
    mysql.work(columns, mode="atomic", **options)


def test_a_text_key_in_a_column_of_bytes_is_limited_by_its_bytes(mysql: Mysql) -> None:
    mysql.run("CREATE TABLE t (n int, text varbinary(9) PRIMARY KEY)")
    with pytest.raises(DataError, match="10 bytes, and the column takes 9"):
        mysql.write(batch_of([1], "é" * 5), mode="upsert", key="text")


def test_mysql_ddl_rejects_scales_and_servers_that_it_does_not_know() -> None:
    small = T.StructType([T.StructField("d", T.DecimalType(38, 31))])
    with pytest.raises(ConfigError, match=r"Column 'd' .* MySQL keeps 30 digits after the point"):
        mysql_ddl(small, "t", server="mysql")
    assert "decimal(38,31)" in mysql_ddl(small, "t", server="mariadb")
    with pytest.raises(ConfigError, match="server='oracle' must be one of mysql, mariadb"):
        mysql_ddl(small, "t", server="oracle")  # type: ignore[arg-type]

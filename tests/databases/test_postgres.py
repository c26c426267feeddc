"""What only PostgreSQL has: COPY, sessions and roles, operator classes, deferred constraints."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pyarrow as pa
import pytest

from dedup.errors import ConfigError, DataError, SinkError
from dedup.sinks.columns import Unsuitable
from dedup.sinks.postgres import copy_rows
from dedup.sinks.postgres.columns import _SCALARS, check_compared, column_type, encoding
from dedup.sinks.postgres.connections import connected, transaction
from dedup.testing.sinks import QUERY
from tests.databases.database import Sink, batch_of
from tests.databases.postgres import Postgres
from tests.databases.postgres_server import PostgresServer
from tests.databases.test_tables import CI
from tests.support.connections import forget_connections
from tests.support.needs import long


def test_sessions_use_the_keepalives_of_the_dsn(postgres: Postgres) -> None:
    """The timeout also covers a server that accepts no bytes, which keepalives do not detect."""
    default = connected(postgres.dsn, 5).info.get_parameters()
    assert default["tcp_user_timeout"] == "120000"
    assert default["keepalives_idle"] == "10"
    asked = "application_name=mine keepalives_idle=99 tcp_user_timeout=7000"
    own = connected(f"{postgres.dsn} {asked}", 5).info.get_parameters()
    assert {f"{name}={own[name]}" for name in own} >= set(asked.split())
    assert own["keepalives_interval"] == "5"


def test_synchronous_commit_is_turned_on_for_the_sinks_transactions(postgres: Postgres) -> None:
    """Otherwise a crash could lose a micro-batch that Spark has committed."""
    sink = Sink(postgres)
    postgres.run("ALTER ROLE CURRENT_USER SET synchronous_commit = off")
    forget_connections()
    with transaction(sink.options) as connection:
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("off",)
    for given, used in (("off", "on"), ("remote_apply", "remote_apply")):
        postgres.run(f"ALTER ROLE CURRENT_USER SET synchronous_commit = {given}")
        forget_connections()
        begun = sink.work.custom.begin()
        assert begun.connection.execute("SHOW synchronous_commit").fetchone() == (used,)
        sink.work.custom.rollback(begun)


def test_a_frozen_attempt_of_another_role_is_disconnected(postgres: Postgres) -> None:
    """The session acts as a role that is not its user."""
    [(schema,)] = postgres.run("SELECT current_schema()")
    acting = f"acting_{schema}"
    postgres.run(f"CREATE ROLE {acting}", f"GRANT ALL ON SCHEMA {schema} TO {acting}",
                 "CREATE TABLE numbers (n int, text text)",
                 f"ALTER TABLE numbers OWNER TO {acting}")  # fmt: skip
    worker = postgres.as_user(acting).changed(options=f"-csearch_path={schema} -c role={acting}")
    theirs = Sink(worker)
    theirs.batch("run1", 0, [0], [1])
    frozen = theirs.work.slots(QUERY)
    frozen.acquire([0])
    frozen.slot(0).begin()
    theirs.forget()
    theirs.batch("run2", 1, [2], [3])
    frozen.close()
    theirs.assert_once(4)


def test_the_number_of_slots_does_not_change_the_number_of_locks(postgres: Postgres) -> None:
    """All sessions share the server's table of locks, which has a fixed size."""
    sink = Sink(postgres)
    begun = sink.work.custom.begin()
    held = []
    for slots in (3, 60):
        for number in range(-1, slots):
            sink.work.custom.read_marker(begun, f"{sink.query}/postgres/{number}")
        mine = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()"
        held.append(begun.connection.execute(mine).fetchone())
    sink.work.custom.rollback(begun)
    assert held[0] == held[1]


@pytest.mark.parametrize("run_id", ["run1", "run2"])
def test_a_full_disk_of_the_server_loses_nothing(
    postgres_server: PostgresServer, postgres: Postgres, run_id: str
) -> None:
    """A publishing task and the driver fail without a row in the table, and both continue."""
    sink = Sink(postgres)
    sink.batch("run1", 0, [0], [1])
    rows = [batch_of(range(n, n + 1000), "x" * 1800) for n in range(2, 12_002, 1000)]
    forget_connections()
    failed = "Spark retries the task" if run_id == "run1" else "Start the query again"
    with postgres_server.room_for(17 << 20):  # a segment of its log has 16 MiB
        with pytest.raises(SinkError, match=f"File too large.*{failed}"):
            sink.publish(1, *rows, run_id=run_id)
        forget_connections()
    sink.assert_once(2)
    sink.publish(1, *rows, run_id=run_id)
    sink.assert_once(12_002)


# --- tables


def test_a_start_that_rejects_the_table_creates_none(postgres: Postgres) -> None:
    postgres.run("CREATE UNLOGGED TABLE t (n int, text text)")
    with pytest.raises(ConfigError, match="Table t is UNLOGGED"):
        postgres.work()
    assert not postgres.has_table("dedup_markers")


def test_a_temporary_table_of_another_session_is_rejected(postgres: Postgres) -> None:
    with psycopg.connect(postgres.dsn, autocommit=True) as other:
        other.execute("CREATE TEMPORARY TABLE t (n int, text text)")
        found = other.execute("SELECT pg_my_temp_schema()::regnamespace::text").fetchone()
        assert found is not None
        with pytest.raises(ConfigError, match="is temporary"):
            postgres.work(table=f"{found[0]}.t", markers="markers")


@pytest.mark.parametrize("part", ["PARTITION BY HASH (slot)", ""])
def test_an_existing_table_can_hold_the_markers(postgres: Postgres, part: str) -> None:
    postgres.run("CREATE TABLE own (query_id text, sink text, slot int, owner uuid, marker text, "
                 f"PRIMARY KEY (query_id, sink, slot)) {part}")  # fmt: skip
    if part:
        whole = "FOR VALUES WITH (MODULUS 1, REMAINDER 0)"
        postgres.run(f"CREATE TABLE all_of_own PARTITION OF own {whole}")
    sink = Sink(postgres, markers="own")
    for batch_id in range(2):
        sink.batch("run1", batch_id, [batch_id])
    sink.assert_once(2)


def test_markers_do_not_depend_on_the_search_path(postgres: Postgres) -> None:
    side = postgres.elsewhere("side")
    [(first,)], [(other,)] = (each.run("SELECT current_schema()") for each in (postgres, side))
    postgres.run("CREATE TABLE numbers (n int, text text)")
    for markers, path in (("m", first), ("m", f"{first},{other}"), (f"{first}.m", other)):
        there = postgres.changed(options=f"-csearch_path={path}")
        sink = Sink(there, table=f"{first}.numbers", markers=markers)
        postgres.run(f"CREATE TABLE IF NOT EXISTS {other}.m (LIKE m INCLUDING ALL)")
        assert sink.options.markers == f'"{first}"."m"'


def test_a_domain_may_have_the_default(postgres: Postgres) -> None:
    postgres.run("CREATE DOMAIN whole AS int DEFAULT 5", "CREATE TABLE t (n int, text text, "
                 "d whole NOT NULL)")  # fmt: skip
    postgres.write(batch_of([1]))
    assert postgres.run("SELECT * FROM t") == [(1, "t", 5)] * 2


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
    postgres: Postgres, options: dict[str, str], change: str, why: str
) -> None:
    """The transaction checks at its end, because its locks do not prevent these changes."""
    unique, parts = ("UNIQUE", "") if options else ("", "PARTITION BY LIST (text)")
    postgres.run(*CI, f"CREATE TABLE numbers (n int, text text {unique}) {parts}",
                 "CREATE UNLOGGED TABLE more (n int, text text)")  # fmt: skip
    if parts:
        postgres.run("CREATE TABLE most PARTITION OF numbers FOR VALUES IN ('a', 'b')")
    sink = Sink(postgres, **options)
    sink.publish(0, batch_of([0], "a"))

    def rows() -> Iterator[pa.RecordBatch]:
        yield batch_of([1], "b")
        postgres.run(change)
        yield batch_of([2], "b")

    with pytest.raises(ConfigError, match=why):
        sink.send("run1", 1, 0, rows())
    assert postgres.run("SELECT text FROM numbers") == [("a",)]


# --- keys


def test_a_second_unique_index_never_replaces_a_row(postgres: Postgres) -> None:
    sink = Sink(postgres, mode="upsert", key="n")
    sink.publish(0, batch_of([0], "a"))
    postgres.run("CREATE UNIQUE INDEX ON numbers (text)")
    with pytest.raises(DataError, match=r"Key \(text\)=\(a\) already exists"):
        sink.publish(1, batch_of([0, 1], "a"))
    assert postgres.run("SELECT * FROM numbers") == [(0, "a")]


@pytest.mark.parametrize("options", [{"key": "k"}, {"key": "n", "version": "k"}])
def test_a_second_spelling_of_a_uuid_is_rejected(
    postgres: Postgres, options: dict[str, str]
) -> None:
    """Otherwise two IDs of the stream would be one key."""
    postgres.run("CREATE TABLE t (n int UNIQUE, k uuid UNIQUE)")
    text = "00112233-4455-6677-8899-aabbccddeeff"
    rows = pa.record_batch({"n": pa.array([1, 2], pa.int32()), "k": [text, text.upper()]})
    with pytest.raises(DataError, match=r"'k': .*EEFF' is not a UUID in lower case"):
        postgres.write(rows, columns=[("n", "int"), ("k", "string")], mode="upsert", **options)
    assert postgres.run("SELECT * FROM t") == []


@pytest.mark.parametrize("kind", ["json", "jsonb", "integer[]"])
def test_a_version_whose_order_differs_from_spark_is_rejected(kind: str) -> None:
    with pytest.raises(Unsuitable, match=r"orders .* otherwise than Spark"):
        check_compared(kind, in_key=False)
    check_compared("double precision", in_key=False)


def test_texts_are_compared_by_bytes_under_any_collation(postgres: Postgres) -> None:
    """The test checks the statement, because its server has only one order of texts."""
    postgres.run("CREATE TABLE t (k text PRIMARY KEY, v varchar, n int)")
    columns = [("k", "string"), ("v", "string"), ("n", "int")]
    for version in ("v", "n"):
        work = postgres.work(columns, mode="upsert", key="k", version=version)
        statement = work.custom.table.merge_from("incoming")  # type: ignore[attr-defined]
        assert 'DISTINCT ON ("k" COLLATE "C")' in statement
        by_bytes = 'EXCLUDED."v" COLLATE "C" > present."v" COLLATE "C"' in statement
        assert by_bytes == (version == "v")
        assert '"n" COLLATE' not in statement


# --- records


def test_a_rejected_record_that_is_not_kept_is_named_by_its_line(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_rows, "_KEPT_BYTES", 0)
    postgres.run("CREATE TABLE t (n int, text text)")
    rows = batch_of(range(9), ["abc"] * 7 + ["l\0", "abc"])
    for mode in ("append", "atomic"):
        with pytest.raises(DataError, match="line 8, column text") as rejected:
            postgres.write(rows, mode=mode, name=mode)
        assert "The record is" not in str(rejected.value)


def test_a_constraint_that_fails_at_commit_is_reported(postgres: Postgres) -> None:
    postgres.run(
        "CREATE TABLE numbers (n int, text text, UNIQUE (n) DEFERRABLE INITIALLY DEFERRED)"
    )
    sink = Sink(postgres)
    for batch_id in range(2):
        with pytest.raises(DataError, match=r"Key \(n\)=\(1\) already exists"):
            sink.batch("run1", batch_id, [1, 1])
        sink.batch("run1", batch_id, [batch_id])
    sink.assert_once(2)


def test_a_statement_timeout_of_the_user_is_reported(postgres: Postgres) -> None:
    """Each start would meet it again."""
    hasty = Sink(postgres.changed(options="-c statement_timeout=200"))
    hasty.batch("run1", 0, [0])
    slow = (time.sleep(0.5) or n for n in (1, 2))  # type: ignore[func-returns-value]
    with pytest.raises(SinkError, match=r"statement timeout.*`-c statement_timeout=0` among"):
        hasty.task("run1", 1, 0, slow)
    patient = postgres.changed(options="-c statement_timeout=0")
    Sink(patient).batch("run2", 1, [1])


def before_each_row(db: Postgres, body: str) -> None:
    """Make a trigger named ``no`` of these statements of PL/pgSQL."""
    db.run(f"CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$",
           "CREATE TRIGGER no BEFORE INSERT ON numbers FOR EACH ROW EXECUTE FUNCTION no()",
    )  # fmt: skip


@pytest.mark.parametrize(
    "refuse",
    [
        "RAISE 'no order %', NEW.n",
        "RAISE 'no order %', NEW.n USING ERRCODE = 'AB123'",
        "ASSERT NEW.n <> 7, 'no order 7'",
        "CASE NEW.n WHEN 1 THEN NULL; END CASE",
    ],
)
def test_a_record_that_a_trigger_rejects_is_quarantined(postgres: Postgres, refuse: str) -> None:
    sink = Sink(postgres, quarantine="refused")
    before_each_row(postgres, f"IF NEW.n = 7 THEN {refuse}; END IF; RETURN NEW;")
    with pytest.raises(DataError, match=r"Table numbers: (no order 7|case not found)"):
        Sink(postgres, checkpoint="without", name="without").batch("run1", 0, [7])
    sink.batch("run1", 0, [6, 7, 8])
    assert sorted(sink.numbers()) == [6, 8]
    assert postgres.run("SELECT record::json->>'n' FROM refused") == [("7",)]


@pytest.mark.parametrize("state", ["HV000", *map(long, ["57P01", "72000", "40001"])])
def test_a_failure_of_the_server_quarantines_no_record(postgres: Postgres, state: str) -> None:
    """For example a foreign table whose server is unreachable."""
    sink = Sink(postgres, quarantine="refused")
    before_each_row(postgres, f"RAISE 'away' USING ERRCODE = '{state}';")
    with pytest.raises(SinkError, match="away"):
        sink.batch("run1", 0, [0, 1])
    postgres.run("DROP TRIGGER no ON numbers")
    sink.batch("run1", 0, [0, 1])
    sink.assert_once(2)
    assert postgres.run("SELECT 1 FROM refused") == []


@pytest.mark.parametrize("state", ["2D000", long("25001"), long("3D000")])
def test_a_trigger_that_always_fails_is_a_configuration_error(
    postgres: Postgres, state: str
) -> None:
    """For example a COMMIT in a trigger, which fails at each attempt."""
    sink = Sink(postgres)
    before_each_row(postgres, f"RAISE 'never' USING ERRCODE = '{state}';")
    with pytest.raises(ConfigError, match="never"):
        sink.batch("run1", 0, [6])


def test_a_transaction_timeout_is_reported(postgres: Postgres) -> None:
    """PostgreSQL has this limit since version 17."""
    sink = Sink(postgres)
    before_each_row(postgres, "RAISE 'terminating connection' USING ERRCODE = '25P04';")
    with pytest.raises(SinkError, match="`-c transaction_timeout=0` among"):
        sink.batch("run1", 0, [6])


# --- types

SPARK_TYPES = [*_SCALARS, "decimal(12,2)", "decimal(38,38)", "void", "interval day", "time(6)",
               "interval year to month", "variant", "struct<a:int>", "map<string,int>"]  # fmt: skip


@pytest.mark.parametrize("spark", [*SPARK_TYPES, *(f"array<{each}>" for each in SPARK_TYPES)])
def test_every_type_that_the_sink_writes_has_a_column_type(spark: str) -> None:
    kinds = {"numeric", *(kind for found in _SCALARS.values() for kind in found)}
    written = set()
    for kind in (*kinds, *(f"{each}[]" for each in kinds)):
        with suppress(Unsuitable):
            encoding(spark, kind, -1)
            written.add(kind)
    if not written:
        with pytest.raises(Unsuitable):
            column_type(spark)
        return
    base, modifier, rest = re.fullmatch(r"([a-z ]+)(\(.*\))?(.*)", column_type(spark)).groups()
    assert base + rest in written
    if modifier:
        digits, scale = map(int, modifier[1:-1].split(","))
        encoding(spark, base + rest, (digits << 16 | scale) + 4)


@pytest.mark.parametrize("kind", ["void", "interval year", "array<time(6)>"])
def test_a_type_that_to_json_does_not_take_has_to_be_cast(kind: str) -> None:
    with pytest.raises(Unsuitable, match=r"; cast it$"):
        column_type(kind)

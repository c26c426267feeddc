"""Tables, servers and records that do not fit: an error that names them, and nothing half there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StringType, StructType

from dedup.errors import ConfigError, DataError, DedupError, SinkError
from dedup.sinks.data_source import source_of
from dedup.sinks.postgres import copy_rows
from dedup.sinks.postgres.columns import column_type
from dedup.sinks.postgres.connections import connected
from dedup.sinks.postgres.function import POSTGRES
from dedup.sinks.postgres.options import postgres_options
from dedup.sinks.postgres.sink import ready
from tests.postgres.server import Server, free_port
from tests.postgres.tables import Sink, batch_of, once, run, write
from tests.support.connections import forget_connections
from tests.support.needs import long

COLUMNS = [("n", "int"), ("text", "string")]
MAKE = "CREATE TABLE rows (n integer NOT NULL PRIMARY KEY, text varchar(3) CHECK (text <> 'bad'))"


def made(dsn: str, folder: Path, columns: list[tuple[str, str]] = COLUMNS, **options: str) -> Any:
    named = {name.replace("_", "."): value for name, value in options.items()}
    given = {"dsn": dsn, "table": "rows", "checkpointLocation": str(folder), "timeout.seconds": "1"}
    return ready(postgres_options(given | named), columns)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"dsn": ""}, "option dsn is missing"),
        ({"table": ""}, "option table is missing"),
        ({"tabel": "x"}, "Did you mean table?"),
        ({"mode": "merge"}, "append, upsert, atomic"),
        ({"mode": "upsert"}, "needs the option key"),
        ({"key": "n"}, "append only adds rows"),
        ({"version": "v"}, "give the option key"),
        ({"mode": "upsert", "key": "n", "version": "n"}, "cannot be a column of the key"),
        ({"table": "rows; DROP TABLE rows"}, "must be a name as in SQL"),
        ({"name": "a b"}, "becomes part of markers"),
        ({"timeout.seconds": "0"}, "from 1 to 3600"),
        ({"checkpointLocation": ""}, "Give the option checkpointLocation"),
    ],
)
def test_options_that_cannot_work_are_rejected(given: dict[str, str], why: str) -> None:
    right = {"dsn": "host=h", "table": "rows", "checkpointLocation": "c"}
    with pytest.raises(ConfigError, match=why):
        postgres_options(right | given)


@pytest.mark.parametrize("mode", ["append", "atomic"])
def test_complete_mode_is_rejected_without_upsert(mode: str) -> None:
    source = source_of(POSTGRES)({"dsn": "host=h", "table": "rows", "mode": mode})
    with pytest.raises(ConfigError, match=r"dedup_postgres adds .*many times.*mode upsert"):
        source.streamWriter(StructType(), overwrite=True)


def test_complete_mode_is_accepted_with_upsert(dsn: str, tmp_path: Path) -> None:
    run(dsn, MAKE)
    given = {"dsn": dsn, "table": "rows", "mode": "upsert", "key": "n"}
    source = source_of(POSTGRES)({**given, "checkpointLocation": str(tmp_path)})
    schema = StructType().add("n", IntegerType()).add("text", StringType())
    assert source.streamWriter(schema, overwrite=True)


def test_sessions_use_the_keepalives_of_the_dsn(dsn: str) -> None:
    """The timeout also covers a server that accepts no bytes, which keepalives do not detect."""
    default = connected(dsn, 5).info.get_parameters()
    assert default["tcp_user_timeout"] == "120000"
    assert default["keepalives_idle"] == "10"
    asked = "application_name=mine keepalives_idle=99 tcp_user_timeout=7000"
    own = connected(f"{dsn} {asked}", 5).info.get_parameters()
    assert {f"{name}={own[name]}" for name in own} >= set(asked.split())
    assert own["keepalives_interval"] == "5"


@pytest.mark.parametrize(
    ("dsn", "error", "why"),
    [
        ("host=127.0.0.1 port={port}", SinkError, "No connection .*refused"),
        ("{dsn} user=secret password=wr0ng", ConfigError, "password authentication failed"),
        ("{dsn} dbname=nowhere", ConfigError, "does not exist"),
        ("{dsn} user=nobody", ConfigError, "does not exist"),
        ("host=no.such.host.invalid password=s3cret", SinkError, "resolve host"),
        ("postgresql//mistyped", ConfigError, "Correct the option dsn"),
        ("jdbc:postgresql://h/a?password=s3cret", ConfigError, r'connection option "\.\.\."\.'),
        ("postgresql://u:%s3cret@h", ConfigError, "invalid percent-encoded token"),
        ("postgresql://u:p@s3cret@h.invalid", SinkError, "resolve host"),
        ("postgresql://u:p:s3cret/x@h.invalid", SinkError, "No connection"),
        ("host=h password=my s3cret", ConfigError, "in connection info string"),
        ("host=h.invalid;password=s3cret", SinkError, "resolve host"),
    ],
)
def test_a_server_that_cannot_be_used_is_reported_without_the_password(
    server: Server, dsn: str, error: type[DedupError], why: str, tmp_path: Path, request: Any
) -> None:
    own = request.getfixturevalue("dsn_of_test") if "{dsn}" in dsn else ""
    with pytest.raises(error, match=why) as refused:
        made(dsn.format(dsn=own, port=free_port()), tmp_path)
    assert "wr0ng" not in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_the_work_of_a_sink_shows_no_password(dsn: str, tmp_path: Path) -> None:
    run(dsn, MAKE)
    assert "s3cret" not in repr(made(f"{dsn} password=s3cret", tmp_path))


@pytest.fixture
def dsn_of_test(server: Server) -> Iterator[str]:
    run(server.dsn(), "CREATE ROLE secret LOGIN PASSWORD 'right'")
    yield server.dsn()
    run(server.dsn(), "DROP ROLE secret")
    forget_connections()


@pytest.mark.parametrize(
    ("ddl", "columns", "options", "why"),
    [
        ("SELECT 1", COLUMNS, {}, "Table rows does not exist"),
        ("CREATE VIEW rows AS SELECT 1 AS n", COLUMNS, {}, "Table rows is a view"),
        ("CREATE TABLE rows (n integer)", COLUMNS, {}, "has no column 'text'; it has n"),
        ('CREATE TABLE rows (n int, "Text" text)', COLUMNS, {}, "no column 'text'; it has 'Text'"),
        (MAKE, [("text", "string")], {}, "Column 'n' of table rows must have a value"),
        ("CREATE DOMAIN whole AS int NOT NULL; CREATE TABLE rows (n whole, text text)",
         [("text", "string")], {}, "Column 'n' of table rows must have a value"),
        (MAKE, [("n", "bigint")], {}, "Column 'n' of the stream does not go .*bigint"),
    ],
)  # fmt: skip
def test_tables_that_do_not_fit_are_rejected(
    dsn: str,
    tmp_path: Path,
    ddl: str,
    columns: list[tuple[str, str]],
    options: dict[str, str],
    why: str,
) -> None:
    run(dsn, ddl)
    with pytest.raises(ConfigError, match=why):
        made(dsn, tmp_path, columns, **options)


def test_a_domain_may_have_the_default(dsn: str, tmp_path: Path) -> None:
    run(dsn, "CREATE DOMAIN whole AS int DEFAULT 5", "CREATE TABLE rows (n int, text text, "
             "d whole NOT NULL)")  # fmt: skip
    write(dsn, tmp_path, COLUMNS, batch_of([1]))
    assert run(dsn, "SELECT * FROM rows") == [(1, "t", 5)] * 2


def test_defaults_and_identities_are_filled_in(dsn: str, tmp_path: Path) -> None:
    run(dsn, "CREATE TABLE rows (i int GENERATED ALWAYS AS IDENTITY, n int, d int NOT NULL "
             "DEFAULT 7)")  # fmt: skip
    write(dsn, tmp_path, [("n", "int")], pa.record_batch({"n": pa.array([-1], pa.int32())}))
    assert run(dsn, "SELECT i, n, d FROM rows") == [(1, -1, 7), (2, -1, 7)]


def test_a_missing_privilege_or_index_is_a_configuration_error(
    database: str, tmp_path: Path
) -> None:
    run(database, "CREATE ROLE writer LOGIN", MAKE)
    run(
        database,
        "CREATE SCHEMA side AUTHORIZATION writer",
        "CREATE TABLE keyless (n int, text text)",
        "CREATE TABLE later (n int UNIQUE DEFERRABLE, text text)",
    )
    theirs = f"{database} user=writer"
    side = {"markers": "side.markers"}
    try:
        with pytest.raises(ConfigError, match="permission denied for table rows"):
            write(theirs, tmp_path, COLUMNS, batch_of([1]), **side)
        run(database, "GRANT SELECT ON rows TO writer")
        with pytest.raises(ConfigError, match="permission denied for table rows"):
            write(theirs, tmp_path, COLUMNS, batch_of([1]), **side)
        keyless = {"table": "keyless", "mode": "upsert", "key": "n"}
        with pytest.raises(ConfigError, match="no unique index over the key"):
            write(database, tmp_path / "keyless", COLUMNS, batch_of([1]), **keyless)
        with pytest.raises(ConfigError, match="no unique index over the key"):
            write(
                database, tmp_path / "later", COLUMNS, batch_of([1]), **keyless | {"table": "later"}
            )
        assert run(database, "SELECT * FROM rows") == run(database, "SELECT * FROM keyless") == []
    finally:
        forget_connections()
        run(database, "DROP OWNED BY writer", "DROP ROLE writer")


@pytest.mark.parametrize(
    ("kind", "number", "type_"),
    [
        ("date", -(2**31), pa.date32()),
        ("timestamp", -(2**63), pa.timestamp("us", "UTC")),
        # PostgreSQL would take these for -infinity.
        ("date", -(2**31) + 10_957, pa.date32()),
        ("timestamp_ntz", -(2**63) + 946_684_800_000_000, pa.timestamp("us")),
        ("array<date>", -(2**31) + 10_957, pa.list_(pa.date32())),
    ],
)
def test_days_before_the_calendar_of_postgresql_are_refused(
    dsn: str, tmp_path: Path, kind: str, number: int, type_: pa.DataType
) -> None:
    inner = type_.value_type if pa.types.is_list(type_) else type_
    day = pa.array([0, number], pa.int32() if pa.types.is_date(inner) else pa.int64()).cast(inner)
    days = pa.ListArray.from_arrays([0, 1, 2], day) if pa.types.is_list(type_) else day
    run(dsn, f"CREATE TABLE rows (n int, day {column_type(kind)})")
    rows = pa.record_batch({"n": pa.array([1, 2], pa.int32()), "day": days})
    columns = [("n", "int"), ("day", kind)]
    with pytest.raises(DataError, match=r"'day': a record is before 24 November 4714.*\"n\": 2"):
        write(dsn, tmp_path, columns, rows)
    assert run(dsn, "SELECT * FROM rows") == []
    write(dsn, tmp_path / "aside", columns, rows, quarantine="refused")
    assert run(dsn, "SELECT n FROM rows") == [(1,), (1,)]
    assert len(run(dsn, "SELECT * FROM refused")) == 2


BAD = [
    ([1, None], ["a", "b"], r'column "n" .*not-null constraint.*\(null, b\)'),
    ([1, 1], ["a", "b"], r"duplicate key .*Key \(n\)=\(1\) already exists"),
    (
        [1, 2],
        ["a", "abcd"],
        r'too long: 4 characters, and the column takes 3.* is \{"n": 2, "text": "abcd"\}',
    ),
    ([1, 2], ["a", "b\0"], r'invalid byte sequence .*line 2, column text.*\{"n": 2, "text": "b'),
    ([1, 2], ["a", "bad"], r"violates check constraint .*\(2, bad\)"),
]


@pytest.mark.parametrize(("numbers", "texts", "why"), BAD, ids=lambda each: str(each)[:20])
@pytest.mark.parametrize("batch_id", [0, 1])
def test_a_record_that_the_table_rejects_is_reported_and_nothing_is_written(
    dsn: str, tmp_path: Path, numbers: list[int | None], texts: list[str], why: str, batch_id: int
) -> None:
    """In the driver's first micro-batch and in a task's later one."""
    run(dsn, MAKE)
    work = made(dsn, tmp_path)
    sink = Sink(dsn, tmp_path / "sink")
    sink.work = work
    if batch_id:
        sink.work.complete([sink.write("run1", 0, 0, iter([batch_of([9])]))])
    rows = pa.record_batch({"n": pa.array(numbers, pa.int32()), "text": texts})
    with pytest.raises(DataError, match=why) as refused:
        work.complete([sink.write("run1", batch_id, 0, iter([rows]))])
    assert "Table rows" in str(refused.value)
    assert refused.value.remedy == "rejected-rows"
    assert run(dsn, "SELECT n FROM rows WHERE n <> 9") == []
    work.complete([sink.write("run1", batch_id, 0, iter([batch_of([1])]))])
    assert run(dsn, "SELECT n FROM rows WHERE n <> 9") == [(1,)]


@pytest.mark.parametrize("mode", ["append", "atomic"])
@pytest.mark.parametrize("line", [1, 7, 8, 9, 40])
def test_a_rejected_record_is_named_at_any_position(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, line: int
) -> None:
    """Rows are sent in parts, and the server rejects one after it received all of them."""
    monkeypatch.setattr(copy_rows, "_ROWS", 4)
    run(dsn, "CREATE TABLE rows (n integer, text text)")
    texts = ["abc"] * 40
    texts[line - 1] = "l\0" * 200
    rows = pa.record_batch({"n": pa.array(range(40), pa.int32()), "text": texts})
    with pytest.raises(
        DataError, match=rf'record is {{"n": {line - 1}, "text": "l.u0000l'
    ) as refused:
        write(dsn, tmp_path / "one", COLUMNS, rows, mode=mode)
    assert len(str(refused.value)) < 1200
    monkeypatch.setattr(copy_rows, "_KEPT_BYTES", 0)
    with pytest.raises(DataError, match=f"line {line}, column text") as untold:
        write(dsn, tmp_path / "two", COLUMNS, rows, mode=mode)
    assert "The record is" not in str(untold.value)
    assert run(dsn, "SELECT * FROM rows") == []


def test_a_key_without_a_value_is_refused(dsn: str, tmp_path: Path) -> None:
    """Nulls are all different to a unique index, so each replay would add the row once more."""
    run(dsn, "CREATE TABLE rows (n integer UNIQUE, text text)")
    rows = pa.record_batch({"n": pa.array([1, None], pa.int32()), "text": ["a", "b"]})
    with pytest.raises(DataError, match=r"no value in column 'n', which is part of the key.*null"):
        write(dsn, tmp_path, COLUMNS, rows, mode="upsert", key="n")
    assert run(dsn, "SELECT * FROM rows") == []


def test_a_column_dropped_under_the_query_stops_it(dsn: str, tmp_path: Path) -> None:
    sink = Sink(dsn, tmp_path)
    sink.batch("run1", 0, [0])
    run(dsn, "ALTER TABLE numbers DROP COLUMN text")
    with pytest.raises(ConfigError, match='column "text" of relation "numbers" does not exist'):
        sink.batch("run1", 1, [1])
    run(dsn, "ALTER TABLE numbers ADD COLUMN text text")
    sink.batch("run1", 1, [1])
    assert sink.numbers() == once(2)


@pytest.mark.parametrize("options", [{}, {"mode": "atomic"}, {"mode": "upsert", "key": "n"}])
@pytest.mark.parametrize("batch_id", [0, 1])
def test_a_column_that_changes_its_type_is_refused(
    dsn: str, tmp_path: Path, options: dict[str, str], batch_id: int
) -> None:
    """The bytes of an integer are also valid as a small fraction: the server takes them."""
    sink = Sink(dsn, tmp_path, **options)
    for each in range(batch_id):
        sink.batch("run1", each, [])
    run(dsn, "ALTER TABLE numbers ALTER n TYPE real")
    with pytest.raises(ConfigError, match="Column 'n' of the stream does not go into table"):
        sink.batch("run1", batch_id, [5])
    assert run(dsn, "SELECT * FROM numbers") == []


def test_names_with_quotes_and_percent_signs_are_accepted(database: str, tmp_path: Path) -> None:
    """Psycopg reads percent signs as placeholders."""
    run(database, 'CREATE SCHEMA "a%b"',
        'CREATE TABLE "a%b"."t""%s" ("n%s" int PRIMARY KEY, "%(x)""s" text)')  # fmt: skip
    columns = [("n%s", "int"), ('%(x)"s', "string")]
    named = {"table": '"a%b"."t""%s"', "key": "n%s", "markers": '"m""m"'}
    for mode in ("upsert", "atomic"):
        rows = batch_of([1], mode)
        write(database, tmp_path / mode, columns, rows, mode=mode, name=mode, **named)
        assert run(database, 'SELECT * FROM "a%b"."t""%s"') == [(1, mode)]


def test_a_statement_timeout_of_the_user_is_reported(dsn: str, tmp_path: Path) -> None:
    """Each start would meet it again."""
    hasty = Sink(f"{dsn} options='-c statement_timeout=200'", tmp_path)
    hasty.batch("run1", 0, [0])
    slow = (time.sleep(0.5) or batch_of([n]) for n in range(2))  # type: ignore[func-returns-value]
    with pytest.raises(SinkError, match=r"statement timeout.*`-c statement_timeout=0` among"):
        hasty.write("run1", 1, 0, slow)
    Sink(f"{dsn} options='-c statement_timeout=0'", tmp_path).batch("run2", 1, [1])


def before_each_row(dsn: str, body: str) -> None:
    """Make a trigger named ``no`` of these statements of PL/pgSQL."""
    run(dsn, f"CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$",
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
def test_a_record_that_a_trigger_refuses_is_quarantined(
    dsn: str, tmp_path: Path, refuse: str
) -> None:
    sink = Sink(dsn, tmp_path, quarantine="refused")
    before_each_row(dsn, f"IF NEW.n = 7 THEN {refuse}; END IF; RETURN NEW;")
    with pytest.raises(DataError, match=r"Table numbers: (no order 7|case not found)"):
        Sink(dsn, tmp_path / "without", name="without").batch("run1", 0, [7])
    sink.batch("run1", 0, [6, 7, 8])
    assert sorted(sink.numbers()) == [6, 8]
    assert run(dsn, "SELECT record::json->>'n' FROM refused") == [("7",)]


@pytest.mark.parametrize("state", ["HV000", *map(long, ["57P01", "72000", "40001"])])
def test_a_failure_of_the_server_quarantines_no_record(
    dsn: str, tmp_path: Path, state: str
) -> None:
    """For example a foreign table whose server is unreachable."""
    sink = Sink(dsn, tmp_path, quarantine="refused")
    before_each_row(dsn, f"RAISE 'away' USING ERRCODE = '{state}';")
    with pytest.raises(SinkError, match="away"):
        sink.batch("run1", 0, [6, 7, 8])
    run(dsn, "DROP TRIGGER no ON numbers")
    sink.batch("run1", 0, [6, 7, 8])
    assert sorted(sink.numbers()) == [6, 7, 8]
    assert run(dsn, "SELECT 1 FROM refused") == []


@pytest.mark.parametrize("state", ["2D000", long("25001"), long("3D000")])
def test_a_trigger_that_always_fails_is_a_configuration_error(
    dsn: str, tmp_path: Path, state: str
) -> None:
    """For example a COMMIT in a trigger, which fails at each attempt."""
    sink = Sink(dsn, tmp_path)
    before_each_row(dsn, f"RAISE 'never' USING ERRCODE = '{state}';")
    with pytest.raises(ConfigError, match="never"):
        sink.batch("run1", 0, [6])


def test_a_transaction_timeout_is_reported(dsn: str, tmp_path: Path) -> None:
    """PostgreSQL has this limit since version 17."""
    sink = Sink(dsn, tmp_path)
    before_each_row(dsn, "RAISE 'terminating connection' USING ERRCODE = '25P04';")
    with pytest.raises(SinkError, match="`-c transaction_timeout=0` among"):
        sink.batch("run1", 0, [6])


def test_markers_do_not_depend_on_the_search_path(database: str, tmp_path: Path) -> None:
    run(database, "CREATE SCHEMA side")
    for markers, path in (("m", "public"), ("m", "public,side"), ("public.m", "side")):
        there = f"{database} options='-c search_path={path}'"
        sink = Sink(there, tmp_path, table="public.numbers", markers=markers)
        run(database, "CREATE TABLE IF NOT EXISTS side.m (LIKE m INCLUDING ALL)")
        assert sink.work.options.markers == '"public"."m"'


def test_a_constraint_that_fails_at_commit_is_reported(dsn: str, tmp_path: Path) -> None:
    run(dsn, "CREATE TABLE numbers (n int, text text, UNIQUE (n) DEFERRABLE INITIALLY DEFERRED)")
    sink = Sink(dsn, tmp_path)
    for batch_id in range(2):
        with pytest.raises(DataError, match=r"Key \(n\)=\(1\) already exists"):
            sink.batch("run1", batch_id, [1, 1])
        sink.batch("run1", batch_id, [batch_id])
    assert sink.numbers() == once(2)


VERSIONED = [("n", "int"), ("v", "int"), ("text", "string")]


def versions(rows: list[tuple[int, int | None, str]]) -> pa.RecordBatch:
    numbers, found, texts = zip(*rows, strict=True)
    return pa.record_batch(
        {"n": pa.array(numbers, pa.int32()), "v": pa.array(found, pa.int32()), "text": texts}
    )


def test_the_newest_version_stays(dsn: str, tmp_path: Path) -> None:
    run(dsn, "CREATE TABLE rows (n int PRIMARY KEY, v int, text text)",
        "INSERT INTO rows VALUES (1, 5, 'there'), (2, 5, 'there'), (3, NULL, 'there'), "
        "(4, 5, 'there'), (7, 5, 'there'), (8, NULL, 'there')")  # fmt: skip
    rows = versions(
        [(1, 4, "older"), (2, 6, "newer"), (3, 1, "first"), (4, None, "none"), (5, 1, "one"),
         (5, 3, "three"), (5, 2, "two"), (6, None, "none"), (6, 1, "one"), (7, 5, "same"),
         (8, None, "none"), (9, 2, "first"), (9, 2, "last"), (10, None, "first"),
         (10, None, "last")]
    )  # fmt: skip
    write(dsn, tmp_path, VERSIONED, rows, mode="upsert", key="n", version="v")
    assert run(dsn, "SELECT n, text FROM rows ORDER BY n") == [
        (1, "there"), (2, "newer"), (3, "first"), (4, "there"), (5, "three"), (6, "one"),
        (7, "there"), (8, "there"), (9, "first"), (10, "first"),
    ]  # fmt: skip


def test_without_a_version_the_last_row_stays(dsn: str, tmp_path: Path) -> None:
    run(dsn, "CREATE TABLE rows (n int PRIMARY KEY, v int, text text)",
        "INSERT INTO rows VALUES (1, 5, 'there')")  # fmt: skip
    rows = versions([(1, 4, "first"), (2, 1, "a"), (1, 3, "last"), (2, 0, "b")])
    write(dsn, tmp_path, VERSIONED, rows, mode="upsert", key="n")
    assert run(dsn, "SELECT n, text FROM rows ORDER BY n") == [(1, "last"), (2, "b")]


def test_a_table_of_only_key_columns_accepts_rows(dsn: str, tmp_path: Path) -> None:
    run(dsn, "CREATE TABLE rows (n int, text text, PRIMARY KEY (text, n))")
    write(dsn, tmp_path, COLUMNS, batch_of([1, 1, 2]), mode="upsert", key="n,text")
    assert run(dsn, "SELECT n FROM rows ORDER BY n") == [(1,), (2,)]


def test_writers_of_the_same_keys_never_deadlock(dsn: str, tmp_path: Path) -> None:
    """Each writer sorts its rows by key."""
    sink = Sink(dsn, tmp_path, mode="upsert", key="n")
    sink.batch("run1", 0, [0], [0], [0])
    numbers = list(range(3000))

    def work(slot: int, order: list[int]) -> None:
        for batch_id in range(1, 6):
            sink.write("run1", batch_id, slot, iter([batch_of(order, f"t{slot}")]))

    orders = [numbers, numbers[::-1], numbers[1500:] + numbers[:1500]]
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(work, *each) for each in enumerate(orders)]:
            done.result()
    assert sink.numbers() == once(3000)


def test_rows_go_into_a_partitioned_table(dsn: str, tmp_path: Path) -> None:
    run(dsn, "CREATE TABLE rows (n int PRIMARY KEY, text text) PARTITION BY RANGE (n)",
        "CREATE TABLE low PARTITION OF rows FOR VALUES FROM (0) TO (10)")  # fmt: skip
    write(dsn, tmp_path, COLUMNS, batch_of([1, 2]), mode="upsert", key="n")
    assert run(dsn, "SELECT count(*) FROM low") == [(2,)]
    with pytest.raises(DataError, match="no partition of relation"):
        write(dsn, tmp_path, COLUMNS, batch_of([10]), mode="upsert", key="n", name="other")

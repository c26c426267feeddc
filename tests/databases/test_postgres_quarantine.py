"""Records that the table does not take go to their own table, with the slice they are of."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from dedup.errors import DataError
from dedup.sinks.postgres import quarantine as quarantine_table
from dedup.sinks.protocol import PublishedSlice, StagedSlice
from dedup.testing.sinks import QUERY, once
from tests.databases.database import MODES, Sink, batch_of, mode_name
from tests.databases.postgres import Postgres
from tests.support.connections import forget_connections

BAD = {
    None: ("t", 'null value in column "n"'),
    3: ("abcdef", "value too long"),
    5: ("b\0", "invalid byte sequence"),
    7: ("bad", "violates check constraint"),
}


def picky_sink(postgres: Postgres, **options: str) -> Sink:
    postgres.run("CREATE TABLE numbers (n integer NOT NULL UNIQUE, text varchar(3) CHECK "
             "(text <> 'bad'))")  # fmt: skip
    return Sink(postgres, quarantine="refused", **options)


def mixed(numbers: list[int | None]) -> pa.RecordBatch:
    texts = [BAD[n][0] if n in BAD else "t" for n in numbers]
    columns = {"n": pa.array(numbers, pa.int32()), "text": pa.array(texts, pa.string())}
    return pa.record_batch(columns)


def refused(postgres: Postgres) -> list[tuple[Any, ...]]:
    return postgres.run(
        "SELECT batch_id, reason, record, query_id, sink FROM refused ORDER BY 1, 3"
    )


@pytest.mark.parametrize("options", MODES, ids=mode_name)
@pytest.mark.parametrize("batch_id", [0, 1])
def test_rejected_records_are_quarantined_and_the_others_arrive(
    postgres: Postgres, options: dict[str, str], batch_id: int
) -> None:
    """In the driver's first micro-batch and a task's later one. A replay repeats nothing."""
    sink = picky_sink(postgres, **options)
    for before in range(batch_id):
        sink.batch("run1", before, [100])
    rows = [mixed([0, 1, None, 2, 3, 4, 5]), mixed([]), mixed([6, 7, 8, 9])]
    expected = once(10)
    for n in BAD:
        expected.pop(n, None)  # type: ignore[arg-type]
    own = bool(batch_id) and "atomic" not in options.values()
    for attempt, run_id in enumerate(("run1", "run1", "run2")):
        answer = sink.send(run_id, batch_id, 0, iter(rows))
        sink.finish([answer])
        assert attempt or isinstance(answer.slice, PublishedSlice if own else StagedSlice)
        there = sink.numbers()
        there.pop(100, None)
        assert there == expected
        found = refused(postgres)
        assert len(found) == len(BAD)
        for at, reason, record, query_id, name in found:
            assert (at, query_id, name) == (batch_id, QUERY, "postgres")
            text, why = BAD[json.loads(record)["n"]]
            assert json.loads(record)["text"] == text
            if "key" not in options or text != "t":
                assert why in reason
            assert reason.startswith("Table numbers")
            assert "Nothing" not in reason


def test_rows_of_one_key_keep_their_order(postgres: Postgres) -> None:
    sink = picky_sink(postgres, mode="upsert", key="n")
    for batch_id in range(2):
        rows = pa.record_batch(
            {"n": pa.array([1, 2, 1, 7, 1], pa.int32()), "text": ["a", "b", "c", "bad", "z"]}
        )
        sink.publish(batch_id, rows)
        assert postgres.run("SELECT * FROM numbers ORDER BY n") == [(1, "z"), (2, "b")]
        assert len(refused(postgres)) == batch_id + 1


def test_a_second_row_of_a_key_is_quarantined_among_many_blocks(postgres: Postgres) -> None:
    sink = picky_sink(postgres)
    for batch_id in range(2):
        base = 10_000 * batch_id
        rows = batch_of([*range(base, base + 5_000), base + 7, base + 4_999])
        sink.publish(batch_id, rows)
        found = [record for at, _, record, *_ in refused(postgres) if at == batch_id]
        assert {json.loads(record)["n"] for record in found} == {base + 7, base + 4_999}
    assert sink.numbers().total() == 10_000


@pytest.mark.parametrize("mode", ["append", "atomic"])
def test_records_that_fail_a_deferred_constraint_are_quarantined(
    postgres: Postgres, mode: str
) -> None:
    """Otherwise the commit would fail at every start, and nothing would be quarantined."""
    postgres.run("CREATE TABLE customers (n int PRIMARY KEY)",
        "INSERT INTO customers VALUES (1), (2)",
        "CREATE TABLE numbers (n int REFERENCES customers DEFERRABLE INITIALLY DEFERRED, "
        "text text, UNIQUE (n) DEFERRABLE INITIALLY DEFERRED)")  # fmt: skip
    sink = Sink(postgres, quarantine="refused", mode=mode)
    sink.batch("run1", 0, [1, 7])
    sink.batch("run1", 1, [1, 2, 8])
    assert sorted(sink.numbers().elements()) == [1, 2]
    assert [json.loads(record)["n"] for _, _, record, *_ in refused(postgres)] == [7, 1, 8]


@pytest.mark.parametrize("mode", ["append", "atomic"])
def test_a_constraint_over_several_records_is_checked_after_the_last_one(
    postgres: Postgres, mode: str
) -> None:
    postgres.run("CREATE TABLE numbers (n int CHECK (n <> 7), text text)",
        "CREATE FUNCTION pair() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF NEW.n % 2 = 0 AND NOT EXISTS (SELECT FROM numbers WHERE n = NEW.n + 1) THEN "
        "RAISE 'no other one'; END IF; RETURN NEW; END $$",
        "CREATE CONSTRAINT TRIGGER pair AFTER INSERT ON numbers DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION pair()")  # fmt: skip
    sink = Sink(postgres, quarantine="refused", mode=mode)
    for batch_id in range(2):
        of_one, of_two = ([0, 2], [1, 3]) if mode == "atomic" else ([0, 1], [2, 3])
        sink.batch("run1", 2 * batch_id, of_one, of_two)
        assert refused(postgres) == []
        # One that has to go before the commit takes no others with it.
        sink.batch("run1", 2 * batch_id + 1, [8, 7, 9])
        assert [json.loads(record)["n"] for _, _, record, *_ in refused(postgres)] == [7]
        assert sorted(sink.numbers().elements()) == sorted([0, 1, 2, 3, 8, 9] * (batch_id + 1))
        postgres.run("DELETE FROM refused")
    sink.batch("run1", 4, [20, 7], [5])
    found = [(json.loads(record)["n"], reason) for _, reason, record, *_ in refused(postgres)]
    assert [n for n, _ in found] == [20, 7]
    assert "no other one" in found[0][1]
    assert 5 in sink.numbers()


@pytest.mark.parametrize("batch_id", [0, 1])
def test_too_many_rejected_records_stop_the_micro_batch(
    postgres: Postgres, batch_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine_table, "MOST", 5)
    sink = picky_sink(postgres)
    for before in range(batch_id):
        sink.batch("run1", before, [100])
    postgres.run("ALTER TABLE numbers ADD CHECK (n >= 100)")
    with pytest.raises(DataError, match=r"more than 5 records of one transaction.*Fix the table"):
        sink.batch("run1", batch_id, range(20))
    assert refused(postgres) == []
    assert sink.numbers().total() == batch_id


@pytest.mark.parametrize("mode", ["append", "atomic"])
def test_characters_that_the_database_cannot_encode_are_quarantined(
    postgres: Postgres, mode: str
) -> None:
    postgres.run("CREATE DATABASE narrow ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' "
             "TEMPLATE template0")  # fmt: skip
    try:
        narrow = postgres.changed(dbname="narrow", options="")
        narrow.run("CREATE TABLE numbers (n int, text text)")
        sink = Sink(narrow, quarantine="refused", mode=mode)
        rows = [batch_of([1], "é"), batch_of([2], '日"\U0001f600')]
        for batch_id in range(2):
            sink.publish(batch_id, *rows)
        assert sorted(sink.numbers().elements()) == [1, 1]
        for _, reason, record, *_ in refused(narrow):
            assert "no equivalent" in reason
            assert json.loads(record) == {"n": 2, "text": '日"\U0001f600'}
    finally:
        forget_connections()
        postgres.run("DROP DATABASE narrow")


def test_records_that_json_cannot_express_are_quarantined(postgres: Postgres) -> None:
    postgres.run("CREATE TABLE t (b bytea, t text, d date, m numeric)")
    columns = [("b", "binary"), ("t", "string"), ("d", "date"), ("m", "decimal(5,2)")]
    text = pa.array([b"\xff\x00a"], pa.binary())
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array([b"\x01\xff"]),
            pa.StringArray.from_buffers(1, text.buffers()[1], text.buffers()[2]),
            pa.array([0], pa.date32()),
            pa.array(["1.50"]).cast(pa.decimal128(5, 2)),
        ],
        names=["b", "t", "d", "m"],
    )
    postgres.write(rows, columns=columns, quarantine="refused")
    found = refused(postgres)
    assert len(found) == 2
    for _, reason, record, *_ in found:
        assert "invalid byte sequence" in reason
        assert json.loads(record) == {
            "b": "\\x01ff", "t": "\\xff\0a", "d": "1970-01-01", "m": "1.50",
        }  # fmt: skip


def test_records_beyond_the_calendar_of_python_are_quarantined(postgres: Postgres) -> None:
    """So are numbers that JSON lacks, and lists with invalid texts."""
    postgres.run("CREATE TABLE t (d date, t timestamptz, x double precision, a text[])")
    columns = [("d", "date"), ("t", "timestamp"), ("x", "double"), ("a", "array<string>")]
    wrong = pa.array([b"\xffa"])
    wrong = pa.StringArray.from_buffers(1, wrong.buffers()[1], wrong.buffers()[2])
    texts = pa.concat_arrays([pa.array(["b"]), wrong])
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array([3_000_000, 0], pa.int32()).cast(pa.date32()),
            pa.array([-(2**58), 0]).cast(pa.timestamp("us", "UTC")),
            pa.array([float("nan"), float("-inf")]),
            pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), texts),
        ],
        names=["d", "t", "x", "a"],
    )
    postgres.write(rows, columns=columns, quarantine="refused")
    found = refused(postgres)[:2]
    assert ["before 24 November 4714" in reason for _, reason, *_ in found] == [True, False]
    assert [json.loads(record) for _, _, record, *_ in found] == [
        {"d": "10183-09-21", "t": "-7164-05-05 06:37:28.288256Z", "x": "NaN", "a": ["b"]},
        {"d": "1970-01-01", "t": "1970-01-01T00:00:00+00:00", "x": "-Infinity", "a": ["\\xffa"]},
    ]

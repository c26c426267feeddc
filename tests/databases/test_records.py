"""A record that the table rejects is reported, and nothing of its slice is written."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dedup.errors import DataError
from dedup.sinks.mysql import tables
from dedup.sinks.postgres import copy_rows
from tests.databases.database import Database, Sink, batch_of
from tests.support.needs import some_long

TRIGGER = {
    "postgres": (
        "CREATE FUNCTION tg() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF NEW.text = 'sig' THEN RAISE 'this is the trigger'; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER tg BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION tg()",
    ),
    "mysql": (
        "CREATE TRIGGER tg BEFORE INSERT ON t FOR EACH ROW IF NEW.text = 'sig' THEN "
        "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'this is the trigger'; END IF",
    ),
}
#: Two records, and what each server says of the second one.
BAD = [
    ([1, None], ["a", "b"], r'column "n" .*not-null constraint.*\(null, b\)',
     r"column 'n': a record has no value.*\"n\": null"),
    ([1, 1], ["a", "b"], r"duplicate key .*Key \(n\)=\(1\) already exists",
     r"Duplicate entry '1' for key 'PRIMARY'.*\"n\": 1, \"text\": \"b\""),
    ([1, 2], ["a", "abcd"], r'4 characters, and the column takes 3.*\{"n": 2, "text": "abcd"\}',
     r"4 characters, and the column takes 3.*\"n\": 2, \"text\": \"abcd"),
    ([1, 2], ["a", "bad"], r"violates check constraint .*\(2, bad\)",
     r"CONSTRAINT `no_bad` failed.*\"n\": 2, \"text\": \"bad\""),
    ([1, 2], ["a", "sig"], "this is the trigger",
     r"this is the trigger.*\"n\": 2, \"text\": \"sig\""),
    ([1, 404], ["a", "b"], r"foreign key constraint.*Key \(n\)=\(404\) is not present",
     r"foreign key constraint fails.*\"n\": 404"),
]  # fmt: skip


@pytest.mark.parametrize(("numbers", "texts", "postgres_says", "mysql_says"), BAD, ids=[
    "null", "duplicate", "long", "check", "trigger", "foreign key"])  # fmt: skip
@pytest.mark.parametrize("batch_id", some_long([0, 1], 1))
def test_a_record_that_the_table_rejects_is_reported_and_nothing_is_written(
    db: Database, monkeypatch: pytest.MonkeyPatch, batch_id: int,
    numbers: list[int | None], texts: list[str], postgres_says: str, mysql_says: str,
) -> None:  # fmt: skip
    """In the driver's first micro-batch and a task's later one, alone or among many rows."""
    db.run("CREATE TABLE p (n int PRIMARY KEY)", "INSERT INTO p VALUES (1), (2), (9), (20), (21)",
           "CREATE TABLE t (n int NOT NULL PRIMARY KEY, text varchar(3), "
           "CONSTRAINT no_bad CHECK (text <> 'bad'), FOREIGN KEY (n) REFERENCES p (n))",
           *TRIGGER[db.name])  # fmt: skip
    sink = Sink(db, table="t")
    if batch_id:
        monkeypatch.setattr(tables, "_BYTES", 20)
        monkeypatch.setattr(copy_rows, "_ROWS", 2)
        sink.batch("run1", 0, [9])
    first, there = batch_of([20, 21], ["x", "y"]), "SELECT n FROM t WHERE n <> 9 ORDER BY n"
    why = f"Table t[:,].*{db.own(postgres=postgres_says, mysql=mysql_says)}"
    with pytest.raises(DataError, match=why) as rejected:
        sink.publish(batch_id, first, batch_of(numbers, texts))
    assert rejected.value.remedy == "rejected-rows"
    assert db.run(there) == []
    sink.publish(batch_id, first)
    assert db.run(there) == [(20,), (21,)]


@pytest.mark.parametrize("line", [1, 7, 8, 9, 40])
def test_a_rejected_record_is_named_at_any_position(
    db: Database, monkeypatch: pytest.MonkeyPatch, line: int
) -> None:
    """Rows are sent in parts. PostgreSQL rejects a row after it has received all of them."""
    monkeypatch.setattr(copy_rows, "_ROWS", 4)
    monkeypatch.setattr(tables, "_ROWS", 4)
    db.run("CREATE TABLE t (n int, text text CHECK (char_length(text) < 9))")
    texts = ["abc"] * 40
    texts[line - 1] = db.own(postgres="l\0" * 200, mysql="l" * 1200)
    with pytest.raises(DataError, match=rf'record is {{"n": {line - 1}, "text": "l') as rejected:
        db.write(batch_of(range(40), texts))
    assert len(str(rejected.value)) < 1200
    assert db.run("SELECT * FROM t") == []


def test_a_key_without_a_value_is_rejected(db: Database) -> None:
    """Nulls are all different to a unique index, so each replay would add the row once more."""
    db.run("CREATE TABLE t (n int UNIQUE, text text)")
    with pytest.raises(
        DataError, match=r"no value.*part of the key.*null|'n': .* or of the key.*nu"
    ):
        db.write(batch_of([1, None]), mode="upsert", key="n")
    assert db.run("SELECT * FROM t") == []


def test_a_text_that_is_not_utf8_is_rejected(db: Database) -> None:
    db.run("CREATE TABLE t (c varchar(3))")
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"a\xff"]).buffers())
    why = db.own(postgres="invalid byte sequence", mysql="not UTF-8, which table t does not take")
    with pytest.raises(DataError, match=why):
        db.write(pa.record_batch({"c": broken}), columns=[("c", "string")])

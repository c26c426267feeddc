"""Rows of the same key replace each other by version or order, and different keys never do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T  # noqa: N812

from dedup.errors import ConfigError, SinkError
from tests.databases.database import Columns, Database, Sink, batch_of, cases
from tests.databases.mysql import Mysql
from tests.databases.postgres import Postgres

UTF8 = "CHARACTER SET utf8mb4 COLLATE"
#: Texts that many collations take for equal; PostgreSQL has no NUL.
TEXTS = ["a", "A", "a ", "", " ", "á", "a\u0301", "ß", "ss", "a\t", "🐍", "İ", "i̇"]
NULS = [*TEXTS, "\0", "a\0"]


NO_INDEX = "has no unique index over the key"


@cases(
    "ddl key why",
    both=[("c varchar(9), n int", "n", NO_INDEX),
          ("c varchar(9), n int, UNIQUE (n, c)", "n", NO_INDEX),
          ("c varchar(9), n int UNIQUE", "c", NO_INDEX)],
    postgres=[("c text, n int, UNIQUE (c) DEFERRABLE", "c",
               r'key \("c"\).*ALTER TABLE t ADD PRIMARY KEY'),
              *((f"c text, n int); CREATE UNIQUE INDEX ON t ({index}", "c", NO_INDEX) for index in (
                  "lower(c)", "c, lower(c)", "c) WHERE (n > 0"))],
    mysql=[("c text, n int, UNIQUE (c(5))", "c", NO_INDEX),
           ("c varchar(9), n int PRIMARY KEY, UNIQUE other (c)", "n", "another unique index, oth"),
           (f"n int, c varchar(9) {UTF8} utf8mb4_bin, PRIMARY KEY (n, c)", "n,c", "the collation"),
           (f"n int, c text {UTF8} utf8mb4_general_ci, UNIQUE (c)", "c", "has the collation")],
)  # fmt: skip
def test_a_key_that_would_merge_rows_is_rejected(
    db: Database, ddl: str, key: str, why: str
) -> None:
    db.run(f"CREATE TABLE t ({ddl})")
    with pytest.raises(ConfigError, match=why):
        db.work([("c", "string"), ("n", "int")], mode="upsert", key=key)


@cases(
    "spark kind why",
    postgres=[
        *((spark, kind, r"Column 'k' .*part of the key.*column TYPE text") for spark, kind in [
            ("double", "double precision"), ("float", "real"), ("string", "jsonb"),
            ("interval day to second", "interval"), ("array<double>", "double precision[]")])],
    mysql=[("double", "double", r"Column 'k' .*part of the key, and 0\.0 equals -0")],
)  # fmt: skip
def test_a_type_that_treats_different_values_as_equal_is_rejected_as_a_key(
    db: Database, spark: str, kind: str, why: str
) -> None:
    db.run(f"CREATE TABLE t (k {kind} PRIMARY KEY)")
    with pytest.raises(ConfigError, match=why):
        db.work([("k", spark)], mode="upsert", key="k")
    db.work([("k", spark)])  # mode append has no key


@pytest.mark.parametrize("kind", [Postgres, Mysql])
def test_the_ddl_rejects_a_key_that_the_sink_rejects(kind: type[Database]) -> None:
    schema = T.StructType([T.StructField("k", T.DoubleType())])
    assert "double" in kind.ddl(schema, "t")
    with pytest.raises(ConfigError, match=r"Column 'k' .*part of the key"):
        kind.ddl(schema, "t", key="k")


@pytest.mark.parametrize("mode", ["upsert", "atomic"])
def test_the_table_of_the_ddl_keeps_keys_apart(db: Database, mode: str) -> None:
    if db.name == "mysql":
        db.run("ALTER DATABASE CHARACTER SET latin1 COLLATE latin1_swedish_ci")
    texts = db.own(postgres=TEXTS, mysql=NULS)
    schema = T.StructType([T.StructField("c", T.StringType()), T.StructField("b", T.BinaryType()),
                           T.StructField("n", T.IntegerType())])  # fmt: skip
    db.run(db.ddl(schema, "t", key=["c", "b"]))
    keys = [(c, b) for c in texts for b in (b"a", b"A", b"a ", b"a\0")]
    rows = pa.record_batch({"c": [c for c, _ in keys], "b": [b for _, b in keys],
                            "n": pa.array(range(len(keys)), pa.int32())})  # fmt: skip
    columns = [(field.name, field.dataType.simpleString()) for field in schema]
    db.write(rows, columns=columns, mode=mode, key="c,b")
    assert [row[:2] for row in db.run("SELECT c, b, n FROM t ORDER BY n")] == keys


@cases(
    "spark kind values",
    postgres=[
        ("string", 'text COLLATE "POSIX"', ["a", "a "]),
        ("string", "varchar(3)", ["a", "a "]),
        ("string", "named", ["e\u0301", "é"]),
        ("string", "mood", ["sad", "Sad"]),
        ("string", "uuid", ["00000000-0000-0000-0000-00000000000a"]),
        ("boolean", "boolean", [True, False]),
        ("array<string>", "text[]", [["a"], ["a", None], []]),
    ],
    # Bytes help on servers without a collation that keeps all texts apart.
    mysql=[("string", "varbinary(9)", NULS)],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["upsert", "atomic"])
def test_different_keys_are_different_rows(
    db: Database, spark: str, kind: str, values: list[Any], mode: str
) -> None:
    if kind in ("named", "mood"):
        db.run("CREATE DOMAIN named AS text; CREATE TYPE mood AS ENUM ('sad', 'Sad')")
    db.run(f"CREATE TABLE t (k {kind}, n int, PRIMARY KEY (n, k))")
    rows = pa.record_batch({"k": values, "n": pa.array([1] * len(values), pa.int32())})
    db.write(rows, columns=[("k", spark), ("n", "int")], mode=mode, key="n,k")
    assert db.run("SELECT count(*) FROM t") == [(len(values),)]


def versions(rows: list[tuple[int, Any, str]], kind: pa.DataType) -> pa.RecordBatch:
    numbers, found, texts = zip(*rows, strict=True)
    columns = {"n": pa.array(numbers, pa.int32()), "v": pa.array(found).cast(kind)}
    return pa.record_batch(columns | {"text": texts})


INT, DECIMAL = ("int", "int", pa.int32()), ("decimal(22,2)", "decimal(22,2)", pa.decimal128(22, 2))
TIMES = pa.timestamp("us", "UTC")


@cases(
    "spark kind arrow",
    both=[INT, DECIMAL],
    postgres=[("timestamp", "timestamptz", TIMES)], mysql=[("timestamp", "datetime(6)", TIMES)],
)  # fmt: skip
def test_the_newest_version_stays(db: Database, spark: str, kind: str, arrow: pa.DataType) -> None:
    db.run(f"CREATE TABLE t (v {kind}, n int PRIMARY KEY, text text)")
    there = versions([(1, 5, "there"), (2, 5, "there"), (3, None, "there"), (4, 5, "there"),
                      (7, 5, "there"), (8, None, "there")], arrow)  # fmt: skip
    rows = versions(
        [(1, 4, "older"), (2, 6, "newer"), (3, 1, "first"), (4, None, "none"), (5, 1, "one"),
         (5, 3, "three"), (5, 2, "two"), (6, None, "none"), (6, 1, "one"), (7, 5, "same"),
         (8, None, "none"), (9, 2, "first"), (9, 2, "last"), (10, None, "first"),
         (10, None, "last")], arrow,
    )  # fmt: skip
    columns: Columns = [("n", "int"), ("v", spark), ("text", "string")]
    options = {"mode": "upsert", "key": "n", "version": "v"}
    db.write(there, columns=columns, name="there", **options)
    db.write(rows, columns=columns, **options)
    assert db.run("SELECT n, text FROM t ORDER BY n") == [
        (1, "there"), (2, "newer"), (3, "first"), (4, "there"), (5, "three"), (6, "one"),
        (7, "there"), (8, "there"), (9, "first"), (10, "first"),
    ]  # fmt: skip


@cases("kind", postgres=[("text",)], mysql=[("varchar(9)",), ("varbinary(9)",)])
def test_text_versions_are_compared_by_their_bytes(db: Database, kind: str) -> None:
    db.run(f"CREATE TABLE t (n int PRIMARY KEY, text {kind})")
    texts = db.own(postgres=TEXTS, mysql=NULS)
    options = {"mode": "upsert", "key": "n", "version": "text"}
    db.write(batch_of([1] * len(texts), texts), **options)
    [(found,)] = db.run("SELECT text FROM t")
    assert (found if isinstance(found, bytes) else found.encode()) == max(map(str.encode, texts))


def test_without_a_version_the_last_row_stays(db: Database) -> None:
    db.run("CREATE TABLE t (n int PRIMARY KEY, text text)", "INSERT INTO t VALUES (1, 'there')")
    rows = batch_of([1, 2, 1, 2], ["first", "a", "last", "b"])
    db.write(rows, mode="upsert", key="n")
    assert db.run("SELECT n, text FROM t ORDER BY n") == [(1, "last"), (2, "b")]


def test_a_table_of_only_key_columns_accepts_rows(db: Database) -> None:
    db.run(f"CREATE TABLE t (n int, text {db.key_text}, PRIMARY KEY (text, n))")
    db.write(batch_of([1, 1, 2]), mode="upsert", key="n,text")
    assert db.run("SELECT n FROM t ORDER BY n") == [(1,), (2,)]


@pytest.mark.parametrize("parts", [1, 6])
def test_writers_of_the_same_keys_write_each_row_once(db: Database, parts: int) -> None:
    """Each takes rows in the order of their keys.

    MySQL does so for each record batch, so several batches of a slice may deadlock. Then Spark
    repeats the task.
    """
    sink = Sink(db, mode="upsert", key="n")
    sink.batch("run1", 0, [0], [0], [0])
    numbers, width = list(range(3000)), 3000 // parts
    ended: list[str] = []

    def work(slot: int, order: list[int]) -> None:
        for batch_id in range(1, 4):
            done = False
            while not done:
                rows = (batch_of(order[n : n + width], f"t{slot}") for n in range(0, 3000, width))
                try:
                    done = sink.send("run1", batch_id, slot, rows) is not None
                except SinkError as error:
                    ended.append(str(error))

    orders = [numbers, numbers[::-1], numbers[1500:] + numbers[:1500]]
    with ThreadPoolExecutor(3) as pool:
        for running in [pool.submit(work, *each) for each in enumerate(orders)]:
            running.result()
    sink.assert_once(3000)
    assert all("Deadlock found" in error for error in ended)
    assert not ended or (parts > 1 and db.name == "mysql")

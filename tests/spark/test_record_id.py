"""Record IDs made by Spark: the bytes of the reference, whatever the session and the layout."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import dedup.record_id
from dedup import check_query, dedup_by_id, record_id
from dedup.errors import ConfigError
from dedup.record_id.canonical import text_of
from tests.support.record_id_values import GOLDEN, GOLDEN_ID, SCHEMA, random_rows
from tests.support.spark_query import SCHEMA as RECORDS
from tests.support.spark_query import Query, finish

PAGE = Path(dedup.record_id.__file__).with_name("README.md")
SPLIT = "spark.sql.files.maxPartitionBytes"


def ids(frame: DataFrame, recipe: record_id.IdRecipe) -> list[Any]:
    made = recipe.of(frame)
    return [None if row[0] is None else row[0] for row in frame.select(made).collect()]


def refused(message: str) -> Any:
    return pytest.raises(ConfigError, match=re.compile(message, re.S))


# --- of columns


def test_the_bytes_never_change(spark: SparkSession) -> None:
    names = [f"c{n}" for n in range(len(GOLDEN))]
    schema = ", ".join(f"{name} {kind}" for name, (kind, _, _) in zip(names, GOLDEN, strict=True))
    frame = spark.createDataFrame([tuple(value for _, value, _ in GOLDEN)], schema)
    assert [made.hex() for made in ids(frame, record_id.from_columns(*names))] == [GOLDEN_ID]


@pytest.mark.parametrize(("zone", "ansi"), [("UTC", "true"), ("America/St_Johns", "false")])
def test_spark_and_the_reference_agree(spark: SparkSession, zone: str, ansi: str) -> None:
    """Whatever the session's time zone and dialect are."""
    rows = [*random_rows(400, seed=7), (None,) * 16]
    frame = spark.createDataFrame(rows, SCHEMA)
    spark.conf.set("spark.sql.session.timeZone", zone)
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    # Each column alone as well: it shows which one differs.
    alone = {name: record_id.from_columns(name).of(frame).alias(name) for name in frame.columns}
    whole = record_id.from_columns(*frame.columns).of(frame)
    *columns, made = frame.select(*alone.values(), whole).toPandas().to_dict("list").values()
    for position, (name, column) in enumerate(zip(alone, columns, strict=True)):
        assert column == [record_id.of_values(row[position]) for row in rows], name
    assert made == [record_id.of_values(*row) for row in rows]
    assert {len(one) for one in made[:-1]} == {16}
    assert made[-1] is None


def test_names_fields_and_expressions(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [("A", (1, "x"), "dot")], "a string, s struct<n:int,t:string>, `b.c` string"
    )
    recipe = record_id.from_columns("s.t", F.lower("a"), "b.c", F.col("s.n") + 1)
    assert ids(frame, recipe) == [record_id.of_values("x", "a", "dot", 2)]
    assert frame.withColumn("id", recipe.of(frame)).columns == ["a", "s", "b.c", "id"]


def test_a_wider_type_gives_the_same_id(spark: SparkSession) -> None:
    kinds = ("tinyint", "int", "bigint", "decimal(10,3)", "decimal(38,0)")
    frame = spark.range(-3, 4).select(F.col("id").cast("int").alias("n"))
    made = [ids(frame, record_id.from_columns(F.col("n").cast(kind))) for kind in kinds]
    assert all(one == made[0] for one in made)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("map<string,int>", r"Column 'x' is map.*F.array_sort\(F.map_entries\('x'\)\) has"),
        ("array<interval day to second>", r"Column 'x\[\]' is interval day to second.*cast it to"),
        ("struct<y:string collate UTF8_LCASE>", r"Column 'x.y' has collation UTF8_LCASE"),
        ("variant", "Column 'x' is variant, of which no record ID is made"),
    ],
)
def test_types_without_a_canonical_form(spark: SparkSession, kind: str, message: str) -> None:
    frame = spark.createDataFrame([], f"x {kind}")
    with refused(message):
        record_id.from_columns("x").of(frame)


def test_columns_that_are_none(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], "a string, b string")
    with refused("cannot be made of the columns .'a', 'b'.*nope"):
        record_id.from_columns("nope").of(frame)
    with refused("names 1 columns, which are 2"):
        record_id.from_columns("*").of(frame)
    with refused("names no column"):
        record_id.from_columns()
    with refused("5 is neither a column name nor a Column"):
        record_id.from_columns(5)  # type: ignore[arg-type]
    with refused("timestamp=IdRecipe.*is neither a column name nor a Column"):
        recipe: Any = record_id.from_columns("a")
        frame.transform(dedup_by_id("a", horizon="1 day", timestamp=recipe))
    with refused("reads no column of the record"):
        frame.transform(dedup_by_id(record_id.from_columns(F.lit("a")), horizon="1 day"))
    with refused(r"computes a record again \(rand\)"):
        frame.transform(dedup_by_id(record_id.from_columns(F.rand()), horizon="1 day"))


def test_a_replay_in_another_layout_finds_every_copy(spark: SparkSession, tmp_path: Path) -> None:
    """The second run finds the same rows in other files, in another order and time zone."""
    rows = [{"key": f"k{n}", "amount": n / 3, "tags": [n % 7, None]} for n in range(90)]
    schema = "key string, amount double, tags array<bigint>"
    recipe = record_id.from_columns("key", "amount", "tags")
    query = Query(spark, tmp_path, {"horizon": "1 day"}, id=recipe, schema=schema)
    query.add_table(pa.Table.from_pylist([*rows, *rows]))
    assert len(query.run().rows[0]) == 90
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    spark.conf.set("spark.sql.leafNodeDefaultParallelism", "1")
    query.files_per_batch = 2
    for part in (rows[60:], rows[:60]):
        query.add_table(pa.Table.from_pylist(part[::-1]))
    assert query.run().rows[1] == []
    (certificate,) = query.catalog.rglob("catalog.json")
    assert '"record_id 1(key, amount, tags)"' in certificate.read_text()


def test_nothing_but_nulls_falls_under_null_ids(spark: SparkSession) -> None:
    rows = [(None, None), (None, None), (None, 1), (None, 1)]
    frame = spark.createDataFrame(rows, "a string, b int")
    operator = dedup_by_id(record_id.from_columns("a", "b"), horizon="1 day", verdict="verdict")
    told = sorted(row["verdict"] for row in frame.transform(operator).collect())
    assert told == ["duplicate", "null_id", "null_id", "unique"]


# --- of places


def test_a_place_in_kafka(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a-1", 0, 7, 9)], "topic string, partition int, o long, n int")
    assert ids(frame, record_id.from_kafka(offset="o")) == ["a-1-0-7"]
    composite = dedup_by_id([record_id.from_kafka(offset="o"), "n"], horizon="1 day")
    assert frame.transform(composite).count() == 1


def test_rows_of_parquet_are_known_however_files_are_cut(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name in ("one two", "b%"):
        table = pa.table({"n": range(20_000), "half": [n % 2 for n in range(20_000)]})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=1000)

    def read() -> tuple[int, dict[tuple[str, int], bytes]]:
        frame = spark.read.parquet(str(tmp_path)).where("half = 1 and n > 5000")
        made = frame.withColumn("file", F.input_file_name())
        rows = made.withColumn("id", record_id.from_file().of(made)).collect()
        return frame.rdd.getNumPartitions(), {(row.file, row.n): row.id for row in rows}

    whole, known = read()
    spark.conf.set(SPLIT, "40000")
    cut, again = read()
    assert cut > whole
    assert again == known
    assert len(set(known.values())) == len(known) == 15_000
    uri = (tmp_path / "b%.parquet").as_uri()
    assert known[uri, 7001] == record_id.of_values(uri, 7001)


def test_half_of_a_place_is_no_id(spark: SparkSession) -> None:
    """Else all records of a file would be one, where Spark does not know their rows."""
    rows = [("file:/a", 1, 2), ("file:/a", None, 2), (None, 1, 2)]
    frame = spark.createDataFrame(rows, "path string, n int, o int")
    for recipe in (record_id.from_file("path", "n"), record_id.from_kafka("path", "n", "o")):
        assert [made is None for made in ids(frame, recipe)] == [False, True, True]


@pytest.mark.parametrize(
    ("one", "other"),
    [("file:/a/b", "file:///a/b"), ("s3a://b/k", "s3://b/k"), ("s3n://b", "s3://b")],
)
def test_one_file_under_two_schemes(spark: SparkSession, one: str, other: str) -> None:
    frame = spark.createDataFrame([(one, 1), (other, 1), ("hdfs://a", 1)], "file string, line int")
    first, second, third = ids(frame, record_id.from_file("file", "line"))
    assert first == second == record_id.of_values(other, 1)
    assert third != first


def test_lines_have_numbers_however_files_are_cut(spark: SparkSession, tmp_path: Path) -> None:
    lines = [f"line {n}" * (n % 50) for n in range(5000)]
    (tmp_path / "dos.txt").write_bytes("\r\n".join(lines).encode())
    (tmp_path / "marked.txt").write_bytes(("\ufeff" + "\n".join([*lines, ""])).encode())
    (tmp_path / "packed.txt.gz").write_bytes(gzip.compress("\r".join(lines).encode()))
    (tmp_path / "empty.txt").write_bytes(b"")
    expected = [(n, line) for n, line in enumerate(lines, 1)]

    def read() -> dict[str, list[tuple[int, str]]]:
        rows = record_id.read_lines(spark.read, str(tmp_path)).collect()
        files: dict[str, list[tuple[int, str]]] = {}
        for row in rows:
            files.setdefault(Path(row.file).name, []).append((row.line, row.value))
        return files

    whole = read()
    assert whole.keys() == {"dos.txt", "marked.txt", "packed.txt.gz"}
    assert all(rows == expected for rows in whole.values())
    spark.conf.set(SPLIT, "1000")
    spark.conf.set("spark.sql.leafNodeDefaultParallelism", "7")
    assert spark.read.text(str(tmp_path)).rdd.getNumPartitions() > 100, "this shows nothing"
    assert read() == whole


def test_lines_as_spark_has_them(spark: SparkSession, tmp_path: Path) -> None:
    """Also an empty line, one at the end, and the columns of folders; a mark alone is no line."""
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=1" / "a.txt").write_bytes(b"\n\na\n\r\nb\n\n")
    (tmp_path / "day=1" / "marked.txt").write_bytes("\ufeff".encode())
    ours = record_id.read_lines(spark.read, str(tmp_path))
    theirs = spark.read.text(str(tmp_path))
    assert [row.value for row in ours.collect()] == [row.value for row in theirs.collect()]
    assert ours.columns == ["day", "file", "line", "value"]


def test_a_stream_of_lines(spark: SparkSession, tmp_path: Path) -> None:
    """Read twice, each line goes on once; equal lines are two records."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"k": 1}\n{"k": 1}\n')
    twice = record_id.read_lines(spark.readStream, str(tmp_path / "in"))
    records = twice.union(twice)
    operator = dedup_by_id(
        record_id.from_file("file", "line"), horizon="1 day", catalog=str(tmp_path / "catalog")
    )
    emitted: list[Any] = []

    def take(rows: DataFrame, _: int) -> None:
        emitted.extend((row.line, row.value) for row in rows.collect())

    writer = records.transform(operator).writeStream.trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    finish(writer.foreachBatch(take).start())
    assert sorted(emitted) == [(1, '{"k": 1}'), (2, '{"k": 1}')]


# --- the page


def test_the_snippets_of_the_page(spark: SparkSession, tmp_path: Path) -> None:
    for folder in ("landing", "logs"):
        (tmp_path / folder).mkdir()
        text = '{"device": "a", "at": "2024-05-01T12:00:00Z", "celsius": 20.5}\n'
        (tmp_path / folder / "one.json").write_text(text * 2)
    names: dict[str, Any] = {"spark": spark, "F": F}
    for snippet in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(re.sub(r'"(landing|logs|[a-z-]*catalog)"', rf'"{tmp_path}/\1"', snippet), names)
    emitted = Counter[str]()
    for name in ("unique", "unique_lines"):
        writer = names[name].writeStream.trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / f"checkpoint-{name}"))

        def take(rows: DataFrame, _: int, name: str = name) -> None:
            emitted[name] += rows.count()

        finish(writer.foreachBatch(take).start())
    assert emitted == {"unique": 1, "unique_lines": 2}


def test_the_table_of_the_page_is_the_truth() -> None:
    """Every text that it shows is one of the golden ones, and so is the ID in words."""
    page = PAGE.read_text()
    table = page.split("## The bytes")[1].split("So (")[0]
    rows = [row.split(" | ")[-1] for row in table.splitlines() if row.startswith("| ")][2:]
    shown = {text for row in rows for text in re.findall(r"`(.+?)`", row)}
    assert len(shown) > 15
    assert shown <= {text for _, _, text in GOLDEN} | {"s3:abc"}
    text, made = re.findall(r"is the text `(.*?)` and the ID\s+`(.*?)`", page)[0]
    assert text == text_of("order-7", 12, None)
    assert made == (record_id.of_values("order-7", 12, None) or b"").hex()


# --- IDs that do not last


MADE: list[tuple[Callable[[], Any], str]] = [
    (lambda: F.expr("uuid()"), "by uuid"),
    (lambda: F.coalesce("id", F.rand().cast("string")), "by rand"),
    (F.monotonically_increasing_id, "by monotonically_increasing_id"),
    (F.spark_partition_id, "by SPARK_PARTITION_ID"),
    (lambda: F.shuffle(F.array("id", "src"))[0], "by shuffle"),
    (lambda: F.udf(lambda n: n, "long").asNondeterministic()("n"), "by <lambda>"),
    (lambda: F.date_format(F.current_timestamp(), "yyyy"), "of the current time .current_times"),
    (F.unix_timestamp, "of the current time .current_timestamp"),
    (lambda: F.concat("id", F.now().cast("string")), "of the current time .now"),
    (F.localtimestamp, "of the current time .localtimestamp"),
    (F.current_date, "of the current time .current_date"),
]
WAYS: dict[str, Callable[[DataFrame, Any], DataFrame]] = {
    "selects": lambda df, made: (
        df.select("n", made.alias("x"))
        .where("n > 1")
        .select(F.concat(F.col("x").cast("string"), F.lit("-")).alias("made"))
    ),
    "a field": lambda df, made: (
        df.select(F.struct("id", made.alias("x")).alias("s"))
        .select(F.struct("s").alias("t"))
        .select(F.col("t.s.x").cast("string").alias("made"))
    ),
    "a union": lambda df, made: df.select(F.col("id").alias("made")).unionByName(
        df.select(made.cast("string").alias("made"))
    ),
    "a generator": lambda df, made: df.select(F.explode(F.array(made)).alias("made")),
    "a field of elements": lambda df, made: (
        df.select(F.explode(F.transform(F.array("n"), lambda _: F.struct(made.alias("x")))))
        .select(F.col("col.x").cast("string").alias("made"))
    ),
    "a field of one of two": lambda df, made: (
        df.select(F.when(F.col("n") > 1, F.struct(F.struct(made.alias("x")).alias("t"))).alias("s"))
        .select(F.col("s.t.x").alias("made"))
    ),
    "a field that is added": lambda df, made: (
        df.select(F.struct("id").alias("s"))
        .select(F.col("s").withField("x", made).alias("s"))
        .select(F.col("s.x").alias("made"))
    ),
    "a field of JSON": lambda df, made: (
        df.select(F.from_json(F.to_json(F.struct(made.alias("x"))), "x string").alias("s"))
        .select(F.col("s.x").alias("made"))
    ),
    "columns as rows": lambda df, made: (
        df.select("n", F.col("id").alias("x"), made.cast("string").alias("y"))
        .unpivot(["n"], ["x", "y"], "name", "made")
    ),
    "a lateral join": lambda df, made: df.select(made.alias("x")).lateralJoin(
        df.sparkSession.range(1).select(F.col("x").outer().cast("string").alias("made"))
    ),
}  # fmt: skip


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> DataFrame:
    return Query(spark, tmp_path, {}).source()


def applied(frame: DataFrame, given: Any, folder: Path, **options: Any) -> DataFrame:
    catalog = {"catalog": str(folder / "catalog")} if frame.isStreaming else {}
    return frame.transform(dedup_by_id(given, horizon="1 day", **catalog, **options))


def test_an_id_of_chance_or_of_the_clock_is_refused(stream: DataFrame, tmp_path: Path) -> None:
    """Where a select before the operator made it, which its expression does not show."""
    for make, message in MADE:
        made = stream.withColumn("made", make())
        with refused(f"id='made' is made {message}.*dedup.record_id") as caught:
            applied(made, "made", tmp_path)
        assert caught.value.remedy == "unstable-id"


def test_also_as_a_part_of_an_id(stream: DataFrame, tmp_path: Path) -> None:
    made = stream.withColumn("made", F.expr("uuid()"))
    with refused("id='record_id 1.id, made.' is made by uuid"):
        applied(made, record_id.from_columns("id", "made"), tmp_path)
    with refused("id='upper.made.' is made by uuid"):
        applied(made, ["id", F.upper("made")], tmp_path)
    applied(made, "id", tmp_path)


@pytest.mark.parametrize("way", WAYS)
def test_it_is_followed(stream: DataFrame, tmp_path: Path, way: str) -> None:
    chance, clock = F.expr("uuid()"), F.current_timestamp()
    for made, message in ((chance, "by uuid"), (clock, "of the current time .current_timestamp")):
        with refused(f"id='made' is made {message}"):
            applied(WAYS[way](stream, made), "made", tmp_path)


def test_it_is_followed_into_subqueries(
    spark: SparkSession, stream: DataFrame, tmp_path: Path
) -> None:
    def with_one(made: Any) -> DataFrame:
        one = spark.range(1).select(made.cast("string"))
        return stream.select(F.concat("id", one.scalar()).alias("made"))

    with refused("id='made' is made by scalarsubquery, uuid"):
        applied(with_one(F.expr("uuid()")), "made", tmp_path)
    with refused("id='made' is made of the current time .now"):
        applied(with_one(F.now()), "made", tmp_path)
    day = spark.range(1).select(F.current_date().alias("made"))
    with refused("id='made' is made of the current time .current_date"):
        applied(stream.lateralJoin(day), "made", tmp_path)
    applied(with_one(F.max("id")), "made", tmp_path)


def test_fields_that_a_python_function_draws(stream: DataFrame, tmp_path: Path) -> None:
    draw = F.udf(lambda n: (n, n), "x long, y long").asNondeterministic()
    drawn = stream.withColumn("s", draw("n"))
    for frame, given in ((drawn, "s.x"), (drawn.select("s.*"), "y")):
        with refused("is made by <lambda>"):
            applied(frame, given, tmp_path)
    applied(drawn.select(F.struct("id", "s").alias("t")), "t.id", tmp_path)


def test_a_cipher_with_a_random_vector(stream: DataFrame, tmp_path: Path) -> None:
    """Without one, or with one that is given, equal texts have equal ciphers."""
    key, vector = F.lit("0" * 16), F.unhex(F.lit("00" * 12))
    for mode in ("GCM", "cbc"):
        drawn = stream.withColumn("made", F.hex(F.aes_encrypt("id", key, F.lit(mode))))
        with refused("id='made' is made by aes_encrypt"):
            applied(drawn, "made", tmp_path)
    lasting = (
        F.aes_encrypt("id", key, F.lit("ecb")),
        F.aes_encrypt("id", key, F.lit("GCM"), F.lit("DEFAULT"), vector),
    )
    for made in lasting:
        applied(stream, made, tmp_path)
        applied(stream.withColumn("made", made), "made", tmp_path)


def test_views_and_sql(spark: SparkSession, stream: DataFrame, tmp_path: Path) -> None:
    stream.createOrReplaceTempView("events")
    text = "WITH made AS (SELECT uuid() AS u, n FROM events) SELECT lower(u) AS made FROM made"
    with refused("id='made' is made by uuid"):
        applied(spark.sql(text), "made", tmp_path)


def test_a_clock_that_is_given_itself(stream: DataFrame, tmp_path: Path) -> None:
    with refused("is made of the current time .current_timestamp"):
        applied(stream, F.unix_timestamp(), tmp_path)
    with refused("is made of the current time .current_date"):
        applied(stream, ["id", F.current_date()], tmp_path)


def test_a_timestamp_of_chance_is_refused_and_of_the_clock_is_not(
    stream: DataFrame, tmp_path: Path
) -> None:
    drawn = stream.withColumn("t", F.timestamp_seconds(F.rand()))
    with refused("timestamp='t' is made by rand") as caught:
        applied(drawn, "id", tmp_path, timestamp="t")
    assert caught.value.remedy == "unstable-id"
    applied(stream.withColumn("t", F.current_timestamp()), "id", tmp_path, timestamp="t")


def test_what_lasts_is_not_refused(spark: SparkSession, stream: DataFrame, tmp_path: Path) -> None:
    """Chance beside the ID, behind a Python pass, and in a batch, where it may be right."""
    beside = stream.withColumn("load", F.struct("id", F.expr("uuid()").alias("u"))).where(
        F.rand() < 0.5
    )
    applied(beside, "load.id", tmp_path)
    load, other = F.struct("id", F.expr("uuid()").alias("u")), F.struct("id", F.lit("").alias("u"))
    for some in (
        F.explode(F.array(load, other)),
        F.when(F.rand() < 0.5, load).otherwise(other),
        other.withField("u", F.expr("uuid()")),
    ):
        applied(stream.select(some.alias("load")), "load.id", tmp_path)
    applied(beside.withColumn("u", F.current_timestamp()), F.upper("id"), tmp_path)
    applied(stream.withColumn("f", F.input_file_name()), ["f", "n"], tmp_path)
    applied(stream.withColumn("u", F.expr("current_user()")), ["u", "id"], tmp_path)
    drawn = stream.select(F.expr("uuid()").alias("u"))
    applied(drawn.mapInArrow(lambda batches: batches, "u string"), "u", tmp_path)

    @F.udtf(returnType="v string")
    class Same:
        def eval(self, value: str) -> Iterator[tuple[str]]:
            yield (value,)

    spark.udtf.register("same", Same)
    stream.createOrReplaceTempView("records")
    made = spark.sql("SELECT s.v, uuid() AS u FROM records, LATERAL same(id) AS s")
    applied(made, F.upper("v"), tmp_path)
    batch = spark.createDataFrame([], RECORDS).withColumn("u", F.expr("uuid()"))
    applied(batch, "u", tmp_path)


def test_check_query_says_it_before_the_start(stream: DataFrame, tmp_path: Path) -> None:
    operator = dedup_by_id("u", horizon="1 day", catalog=str(tmp_path / "catalog"))
    found = {
        one.rule: one for one in check_query(stream.withColumn("u", F.expr("uuid()")), operator)
    }
    assert "id='u' is made by uuid" in found["lasting-id"].evidence
    assert found["lasting-id"].change == 'id="COLUMN"'
    lasting = check_query(stream.withColumn("u", F.lower("id")), operator)
    assert "lasting-id" not in {one.rule for one in lasting}

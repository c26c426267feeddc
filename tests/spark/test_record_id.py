"""Record IDs made by Spark: the bytes of the reference, under any session and layout."""

from __future__ import annotations

import gzip
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import dedup.sources.record_id
from dedup import check_query, dedup_by_id, record_id
from dedup.errors import ConfigError, DedupWarning
from dedup.sources.record_id.canonical import text_of
from dedup.spark.versions import IS_SPARK_3
from tests.support.needs import needs_spark_4, of_spark_4
from tests.support.record_id_values import GOLDEN, GOLDEN_ID, SCHEMA, random_rows
from tests.support.spark_query import SCHEMA as RECORDS
from tests.support.spark_query import Query, collected

PAGE = Path(dedup.record_id.__file__).with_name("README.md")
SPLIT = "spark.sql.files.maxPartitionBytes"


def ids(frame: DataFrame, recipe: record_id.IdRecipe) -> list[Any]:
    made = recipe.of(frame)
    return [None if row[0] is None else row[0] for row in frame.select(made).collect()]


def refused(message: str) -> Any:
    return pytest.raises(ConfigError, match=re.compile(message, re.S))


# --- of columns


def test_the_bytes_of_a_record_id_never_change(spark: SparkSession) -> None:
    names = [f"c{n}" for n in range(len(GOLDEN))]
    schema = ", ".join(f"{name} {kind}" for name, (kind, _, _) in zip(names, GOLDEN, strict=True))
    frame = spark.createDataFrame([tuple(value for _, value, _ in GOLDEN)], schema)
    assert [made.hex() for made in ids(frame, record_id.from_columns(*names))] == [GOLDEN_ID]


@pytest.mark.parametrize(("zone", "ansi"), [("UTC", "true"), ("America/St_Johns", "false")])
def test_spark_and_the_reference_compute_the_same_ids(
    spark: SparkSession, zone: str, ansi: str
) -> None:
    """They agree under any time zone and SQL dialect of the session."""
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


def test_names_fields_and_expressions_can_form_an_id(spark: SparkSession) -> None:
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
        of_spark_4("struct<y:string collate UTF8_LCASE>", r"Column 'x.y' has collation UTF8_LCASE"),
        of_spark_4("variant", "Column 'x' is variant, which a record ID cannot include"),
    ],
)
def test_types_without_a_canonical_form_are_rejected(
    spark: SparkSession, kind: str, message: str
) -> None:
    frame = spark.createDataFrame([], f"x {kind}")
    with refused(message):
        record_id.from_columns("x").of(frame)


def test_columns_that_cannot_form_an_id_are_rejected(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], "a string, b string")
    with refused("cannot be derived from the columns .'a', 'b'.*nope"):
        record_id.from_columns("nope").of(frame)
    with refused("names 1 columns, but they match 2"):
        record_id.from_columns("*").of(frame)
    with refused("needs at least one column"):
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
    (certificate,) = query.catalog.rglob("certificate.json")
    assert '"record_id 1(key, amount, tags)"' in certificate.read_text()


def test_an_id_of_only_nulls_is_a_null_id(spark: SparkSession) -> None:
    rows = [(None, None), (None, None), (None, 1), (None, 1)]
    frame = spark.createDataFrame(rows, "a string, b int")
    operator = dedup_by_id(record_id.from_columns("a", "b"), horizon="1 day", verdict="verdict")
    told = sorted(row["verdict"] for row in frame.transform(operator).collect())
    assert told == ["duplicate", "null_id", "null_id", "unique"]


# --- of places


def test_from_kafka_makes_an_id_of_topic_partition_and_offset(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a-1", 0, 7, 9)], "topic string, partition int, o long, n int")
    assert ids(frame, record_id.from_kafka(offset="o")) == ["a-1-0-7"]
    composite = dedup_by_id([record_id.from_kafka(offset="o"), "n"], horizon="1 day")
    assert frame.transform(composite).count() == 1


def test_parquet_rows_keep_their_ids_in_any_split(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("one two", "b%"):
        table = pa.table({"n": range(20_000), "half": [n % 2 for n in range(20_000)]})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=1000)

    def read() -> tuple[int, dict[tuple[str, int], bytes]]:
        frame = spark.read.parquet(str(tmp_path)).where("half = 1 and n > 5000")
        made = frame.withColumn("file", F.input_file_name())
        rows = made.withColumn("id", record_id.from_file().of(made)).collect()
        return frame.rdd.getNumPartitions(), {(row.file, row.n): bytes(row.id) for row in rows}

    whole, known = read()
    spark.conf.set(SPLIT, "40000")
    cut, again = read()
    assert cut > whole
    assert again == known
    assert len(set(known.values())) == len(known) == 15_000
    uri = (tmp_path / "b%.parquet").as_uri()
    assert known[uri, 7001] == record_id.of_values(uri, 7001)


def test_an_incomplete_place_gives_no_id(spark: SparkSession) -> None:
    """Otherwise all records of a file would share one ID if Spark does not know their rows."""
    rows = [("file:/a", 1, 2), ("file:/a", None, 2), (None, 1, 2)]
    frame = spark.createDataFrame(rows, "path string, n int, o int")
    for recipe in (record_id.from_file("path", "n"), record_id.from_kafka("path", "n", "o")):
        assert [made is None for made in ids(frame, recipe)] == [False, True, True]


@pytest.mark.parametrize(
    ("one", "other"),
    [("file:/a/b", "file:///a/b"), ("s3a://b/k", "s3://b/k"), ("s3n://b", "s3://b")],
)
def test_equivalent_uri_schemes_of_a_file_give_the_same_id(
    spark: SparkSession, one: str, other: str
) -> None:
    frame = spark.createDataFrame([(one, 1), (other, 1), ("hdfs://a", 1)], "file string, line int")
    first, second, third = ids(frame, record_id.from_file("file", "line"))
    assert first == second == record_id.of_values(other, 1)
    assert third != first


def test_lines_keep_their_numbers_in_any_split(spark: SparkSession, tmp_path: Path) -> None:
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


def test_read_lines_gives_the_lines_that_spark_reads(spark: SparkSession, tmp_path: Path) -> None:
    """Empty lines and a last one count, a byte order mark alone does not; folders are columns."""
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=1" / "a.txt").write_bytes(b"\n\na\n\r\nb\n\n")
    (tmp_path / "day=1" / "marked.txt").write_bytes("\ufeff".encode())
    ours = record_id.read_lines(spark.read, str(tmp_path))
    theirs = spark.read.text(str(tmp_path))
    assert [row.value for row in ours.collect()] == [row.value for row in theirs.collect()]
    assert ours.columns == ["day", "file", "line", "value"]


def test_each_line_of_a_stream_passes_once(spark: SparkSession, tmp_path: Path) -> None:
    """The stream reads each line twice. Equal lines are two records."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"k": 1}\n{"k": 1}\n')
    twice = record_id.read_lines(spark.readStream, str(tmp_path / "in"))
    records = twice.union(twice)
    operator = dedup_by_id(
        record_id.from_file("file", "line"), horizon="1 day", catalog=str(tmp_path / "catalog")
    )
    emitted = collected(records.transform(operator), tmp_path / "checkpoint")
    assert sorted((row.line, row.value) for row in emitted) == [(1, '{"k": 1}'), (2, '{"k": 1}')]


# --- the page


def test_the_examples_of_the_page_run(spark: SparkSession, tmp_path: Path) -> None:
    for folder in ("landing", "logs"):
        (tmp_path / folder).mkdir()
        text = '{"device": "a", "at": "2024-05-01T12:00:00Z", "celsius": 20.5}\n'
        (tmp_path / folder / "one.json").write_text(text * 2)
    names: dict[str, Any] = {"spark": spark, "F": F}
    for snippet in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(re.sub(r'"(landing|logs|[a-z-]*catalog)"', rf'"{tmp_path}/\1"', snippet), names)
    for name, emitted in (("unique", 1), ("unique_lines", 2)):
        assert len(collected(names[name], tmp_path / f"checkpoint-{name}")) == emitted


def test_the_table_of_the_page_shows_the_golden_values() -> None:
    """The page's texts are golden ones, and its example ID is right."""
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


#: Random functions and clocks, and how the error names them.
RANDOM: list[tuple[Callable[[], Any], str]] = [
    (lambda: F.expr("uuid()"), "uuid"),
    (lambda: F.coalesce("id", F.rand().cast("string")), "rand"),
    (F.monotonically_increasing_id, "monotonically_increasing_id"),
    (F.spark_partition_id, "spark_partition_id"),
    (lambda: F.shuffle(F.array("id", "src"))[0], "shuffle"),
    (lambda: F.udf(lambda n: n, "long").asNondeterministic()("n"), "<lambda>"),
    # Spark calls it deterministic, and it draws a vector for each call.
    (lambda: F.hex(F.aes_encrypt("id", F.lit("0" * 16))), "aes_encrypt"),
]
CLOCKS: list[tuple[Callable[[], Any], str]] = [
    (lambda: F.date_format(F.current_timestamp(), "yyyy"), "current_timestamp"),
    (F.unix_timestamp, "current_timestamp"),
    (lambda: F.expr("unix_timestamp()"), "unix_timestamp"),
    # Spark 3.5 keeps only the function that it calls.
    (lambda: F.concat("id", F.now().cast("string")), "now|current_timestamp"),
    (F.localtimestamp, "localtimestamp"),
    (F.current_date, "current_date"),
    # SQL needs no parentheses behind these.
    (lambda: F.expr("id || CURRENT_DATE"), "current_date"),
    (lambda: F.expr("transform(array(id), x -> x || current_date)[0]"), "current_date"),
    (lambda: F.expr("id || (select current_date)"), "current_date"),
]


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> DataFrame:
    return Query(spark, tmp_path, {}).source()


def applied(frame: DataFrame, given: Any, folder: Path, **options: Any) -> DataFrame:
    catalog = {"catalog": str(folder / "catalog")} if frame.isStreaming else {}
    return frame.transform(dedup_by_id(given, horizon="1 day", **catalog, **options))


def test_ids_derived_from_randomness_or_the_clock_are_refused(
    stream: DataFrame, tmp_path: Path
) -> None:
    random = [(make, rf"computes a record again \({name}\)") for make, name in RANDOM]
    clocks = [(make, rf"is made of the current time \((?:{name})\)") for make, name in CLOCKS]
    for make, message in (*random, *clocks):
        for given in (make(), ["id", make()], record_id.from_columns("id", make())):
            with refused(f"id=.* {message}.*dedup.record_id") as caught:
                applied(stream, given, tmp_path)
            assert caught.value.remedy == "unstable-id"


@needs_spark_4
def test_an_unlisted_nondeterministic_function_is_refused(
    spark: SparkSession, stream: DataFrame, tmp_path: Path
) -> None:
    spark.sql("CREATE OR REPLACE TEMPORARY FUNCTION drawn() RETURNS STRING RETURN uuid()")
    with refused("id=.*computes a record again .Spark calls it nondeterministic"):
        applied(stream, F.expr("concat(id, drawn())"), tmp_path)


def test_a_random_timestamp_is_refused_but_the_clock_is_accepted(
    stream: DataFrame, tmp_path: Path
) -> None:
    with refused("timestamp=.*computes a record again .rand") as caught:
        applied(stream, "id", tmp_path, timestamp=F.timestamp_seconds(F.rand()))
    assert caught.value.remedy == "unstable-id"
    applied(stream, "id", tmp_path, timestamp=F.current_timestamp())


def test_a_column_named_like_a_clock_function_is_accepted(
    stream: DataFrame, tmp_path: Path
) -> None:
    named = stream.withColumnRenamed("src", "current_date")
    applied(named, F.expr("id || current_date"), tmp_path)


def test_a_random_column_before_the_operator_gives_one_warning(
    spark: SparkSession, stream: DataFrame, tmp_path: Path
) -> None:
    """The ID may be derived from it."""

    def warned(frame: DataFrame, given: Any = "id") -> int:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            applied(frame, given, tmp_path)
        texts = [str(w.message) for w in caught if issubclass(w.category, DedupWarning)]
        assert all("dedup remedies unstable-id" in text for text in texts)
        return len(texts)

    drawn = stream.withColumn("u", F.expr("uuid()"))
    below = drawn.where("n > 1").withColumn("v", F.upper("u"))
    frames = [drawn, below, below.union(below)]
    if not IS_SPARK_3:
        one = spark.range(1).select(F.expr("uuid()")).scalar()
        frames.append(stream.withColumn("u", one))
    for frame in frames:
        assert warned(frame, F.upper("u")) == 1
    filtered = stream.where(F.rand() < 0.5)  # a quarantine of Kafka records is such a filter
    for frame in (stream, stream.withColumn("u", F.current_timestamp()), filtered):
        assert warned(frame) == 0
    # A batch may find the rows of one record again by an ID that was drawn for it.
    batch = spark.createDataFrame([], RECORDS).withColumn("u", F.expr("uuid()"))
    assert warned(batch, "u") == 0


def test_check_query_reports_unstable_ids_before_the_start(
    stream: DataFrame, tmp_path: Path
) -> None:
    def found(given: Any) -> dict[str, Any]:
        operator = dedup_by_id(given, horizon="1 day", catalog=str(tmp_path / "catalog"))
        return {one.rule: one for one in check_query(stream, operator)}

    clock = F.current_timestamp()
    for given, message in (
        (F.expr("uuid()"), "again (uuid)"),
        (clock, "current time (current_timestamp)"),
    ):
        lasting = found(given)["lasting-id"]
        assert message in lasting.evidence
        assert lasting.change == 'id="COLUMN"'
    assert "lasting-id" not in found(F.lower("id"))

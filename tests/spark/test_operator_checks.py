"""What can be known before a query starts is refused on the driver, with what to do."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.state import GroupStateTimeout

from dedup import dedup_by_id, dedup_by_sequence, time_from_id
from dedup.errors import CatalogError, ConfigError, DedupError, DedupWarning, cause
from dedup.spark.driver import checks
from tests.support.needs import long
from tests.support.spark_query import SCHEMA, Query, daily, trace


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> DataFrame:
    return Query(spark, tmp_path, {}).source()


@pytest.fixture
def batch(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], SCHEMA)


def refused(message: str, error: type[DedupError] = ConfigError) -> Any:
    return pytest.raises(error, match=re.compile(message, re.S))


# --- columns


def test_a_missing_column_is_reported_with_the_nearest_names(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], "event_id string, event_time timestamp, kind string")
    with refused(
        "id='evnt_id': there is no such column. Did you mean 'event_id'.*"
        "Columns: event_id, event_time, kind"
    ):
        frame.transform(daily("evnt_id"))
    with refused("timestamp='event_tme': there is no such column. Did you mean 'event_time'"):
        frame.transform(daily("event_id", timestamp="event_tme"))
    with refused("order_by='zzz': there is no such column. Columns: event_id, event_time, kind"):
        frame.transform(daily("event_id", order_by=["kind", "zzz"]))
    with refused("source_partition='knd'.*Did you mean 'kind'"):
        frame.transform(daily("event_id", timestamp="event_time", source_partition="knd"))
    for missing in (F.col("nope"), "kind.nope", F.lower("nope")):
        with refused(r"id cannot be resolved against the columns \['event_id', .*"):
            frame.transform(daily(missing))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timestamp": "id"}, r"timestamp column 'id' is string; .* F.to_timestamp\('id'\)"),
        ({"timestamp": "at"}, r"timestamp column 'at' is bigint; .* F.timestamp_millis\('at'\)"),
        ({"timestamp": "at"}, r"F.timestamp_seconds\('at'\) if it counts seconds"),
        ({"timestamp": lambda: F.to_date("ts")}, r"is date; a timestamp is needed: .*cast\('time"),
        ({"timestamp": lambda: F.col("n") > 1}, "is boolean; .*: give a column that holds the rec"),
        ({"timestamp": 5}, "timestamp=5 is neither a column name nor a Column .it is a int"),
        ({"order_by": lambda: F.array("n")}, r"order_by column 'array\(n\)' is array<bigint>,"),
        ({"timestamp": "ts", "source_partition": lambda: F.array("src")},
         r"source_partition column 'array\(src\)' is array<string>: it is nested"),
        ({"timestamp": "ts", "heartbeat": "n"},
         r"heartbeat column 'n' is bigint; a boolean is needed, such as F.col"),
        ({"timestamp": None, "heartbeat": lambda: F.col("n") > 1},
         "heartbeat=Column.* needs a timestamp column"),
        ({"order_by": 5}, "order_by=5 is neither a column name nor a Column"),
        ({"order_by": lambda: F.col("n").desc()}, "order_by='n DESC NULLS LAST' is a sort order"),
        ({"verdict": "n"}, "verdict='n' is already a column; choose another name"),
        ({"verdict": "SRC"}, "verdict='SRC' is already a column"),
        ({"timestamp": None, "source_partition": lambda: F.col("src")},
         "source_partition=Column.* needs a timestamp column"),
    ],
)  # fmt: skip
def test_columns_of_the_wrong_type_are_rejected(
    batch: DataFrame, options: Any, message: str
) -> None:
    given = {name: value() if callable(value) else value for name, value in options.items()}
    with refused(message):
        batch.transform(daily("id", **given))


ONE_VALUE_OF_EACH_ROW = [
    (lambda: F.explode(F.array("n", "at")), "explode.* adds a step to Spark's plan .Generate.,"),
    (lambda: F.expr("stack(2, n, at)"), "plan .Generate.,"),
    (lambda: F.max("n"), r"max\(n\).* plan .Aggregate.,"),
    (lambda: F.row_number().over(Window.partitionBy("id").orderBy("n")), "plan .Window.,"),
    (lambda: F.window("ts", "1 hour", "10 minutes").start, "plan .Expand, Filter.,"),
    (lambda: F.window("ts", "1 hour").start, "plan .Filter.,"),
    # test_record_id.py has each random function.
    (lambda: F.rand(), r"is not the same when Spark computes a record again \(rand\)"),
]


@pytest.mark.parametrize(("given", "message"), ONE_VALUE_OF_EACH_ROW)
def test_an_expression_must_be_one_deterministic_value_of_each_row(
    batch: DataFrame, stream: DataFrame, tmp_path: Path, given: Any, message: str
) -> None:
    """Otherwise rows could be multiplied or dropped before the operator counts them."""
    for option in ("id", "timestamp", "source_partition", "order_by"):
        options = {"id": "id", "timestamp": "ts", option: given()}
        with refused(f"{option}='.*{message}"):
            batch.transform(dedup_by_id(horizon="1 day", **options))
    with refused(f"order_by='.*{message}"):
        operator = daily("id", catalog=tmp_path / "c", order_by=given())
        stream.transform(operator)
    # The file of a record, the micro-batch's time, and a generator before the operator last.
    lasting = dedup_by_id(
        F.lower("ID"),
        horizon="1 day",
        timestamp=F.current_timestamp(),
        source_partition=F.input_file_name(),
        order_by=F.udf(lambda n: n, "long")("`n`"),
    )
    batch.withColumn("at", F.explode(F.array("n", "at"))).transform(lasting)


def test_columns_given_by_an_iterator_are_kept(spark: SparkSession) -> None:
    """They are read for each DataFrame that the operator is applied to."""
    frame = spark.createDataFrame([("a", 0, None, "s", n) for n in (3, 1, 2)], SCHEMA)
    first = daily((c for c in ["id"]), order_by=(c for c in ["n"]))
    assert [row["n"] for _ in range(2) for row in frame.transform(first).collect()] == [1, 1]


def test_special_column_names_are_kept_and_reserved_ones_rejected(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", 1, 2), ("a", 1, 2)], "id string, `*` int, `a.b` int")
    (row,) = frame.transform(daily(F.lower("id"))).collect()
    assert row.asDict() == {"id": "a", "*": 1, "a.b": 2}
    with refused("Column '__DEDUP_0': names beginning '__dedup_' are reserved"):
        frame.withColumnRenamed("*", "__DEDUP_0").transform(daily("id"))


def test_lateness_beyond_the_horizon_is_warned_about() -> None:
    with pytest.warns(DedupWarning, match="'3 days' is longer than the horizon .1 day.") as told:
        daily("id", timestamp="ts", lateness="3 days")
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        daily("id", timestamp="ts", lateness="1 day")
        daily("id", timestamp="ts", stable_timestamps=True)


def test_a_cap_of_ids_needs_ids() -> None:
    with refused("max_live_ids=0 must be a whole number from 1 to "):
        daily("id", max_live_ids=0)
    with refused("max_live_ids=5 has no effect under guarantee=.at-least-once."):
        daily("id", max_live_ids=5, guarantee="at-least-once")


def test_time_from_id_needs_an_id_of_one_string_column(batch: DataFrame) -> None:
    uuid7 = time_from_id("uuid7")
    for given in (["id", "src"], "n"):
        with refused("time_from_id.'uuid7'. needs an ID of one string column"):
            batch.transform(daily(given, timestamp=uuid7))
    flakes = time_from_id("snowflake", epoch="discord")
    batch.transform(daily("n", timestamp=flakes))
    with refused("time_from_id.'snowflake'. needs an ID of one string column, or .* BIGINT"):
        batch.transform(daily("ts", timestamp=flakes))


def test_an_id_that_is_no_value_of_the_record_is_rejected(batch: DataFrame) -> None:
    with refused(r"id=\[\] names no column"):
        daily([])
    with refused('ID column "id" reads no column of the record, so all records would be copies'):
        batch.transform(daily(F.lit("id")))
    with refused("id returns 2 columns"):
        batch.transform(daily(F.json_tuple("id", "a", "b")))
    with refused("id='k' is a sort order"):
        batch.transform(daily(F.col("id").desc().alias("k")))
    batch.transform(daily(F.concat("id", F.expr("true"))))
    with refused("id=5 is neither a column name nor a Column"):
        batch.transform(daily(5))  # type: ignore[arg-type]


# --- the catalog


def test_a_stream_needs_a_catalog(stream: DataFrame) -> None:
    with refused("A stream needs catalog=: a path or URI.*such as"):
        stream.transform(daily("id"))


def test_a_catalog_that_cannot_be_written_is_reported(stream: DataFrame, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    with refused(
        f"catalog={file}/catalog cannot be written: .*Check that the catalog root", CatalogError
    ):
        stream.transform(daily("id", catalog=file / "catalog"))
    with refused("cannot be written", CatalogError):
        stream.transform(daily("id", catalog=str(file)))
    assert file.read_text() == "in the way"
    with refused("cannot be written: cannot write /proc/none/probe.*has free space", CatalogError):
        stream.transform(daily("id", catalog="/proc/none"))


def test_a_local_catalog_on_a_cluster_is_rejected(
    stream: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test pretends that the master is a cluster."""
    monkeypatch.setattr(checks, "master_of", lambda _: "yarn")
    with refused(
        f"catalog={tmp_path}/c is a local path, but Spark runs on yarn: .*shared_local=True"
    ):
        stream.transform(daily("id", catalog=tmp_path / "c"))
    with refused("is a local path"):
        stream.transform(daily("id", catalog=f"file://{tmp_path}/c"))
    with refused("is a local path"):
        stream.transform(daily("id", catalog=lambda: (pafs.LocalFileSystem(), str(tmp_path))))
    stream.transform(daily("id", catalog=tmp_path / "c", shared_local=True))


def test_a_function_can_give_the_catalog(spark: SparkSession, tmp_path: Path) -> None:
    """Every worker calls it, and it may be a closure."""
    where = str(tmp_path / "elsewhere")

    def catalog() -> tuple[pafs.FileSystem, str]:
        return pafs.LocalFileSystem(), where

    run = trace(spark, tmp_path, [["a@0"], ["a@1", "b@1"]], horizon="1 day", catalog=catalog)
    assert run.told() == [["a@0 unique"], ["a@1 duplicate", "b@1 unique"]]
    assert len(list(Path(where).rglob("certificate.json"))) == 1


# --- the session and the query


def test_releases_that_do_not_work_together_are_rejected(
    spark: SparkSession, stream: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.1.3")
    monkeypatch.setattr("pyarrow.__version__", "26.0.1")
    with refused("PySpark 4.1.3 does not work with pyarrow 26.0.1.*pip install 'pyarrow<26'"):
        stream.transform(daily("id", catalog=str(tmp_path / "catalog")))
    # Without state nothing fails.
    spark.range(1).transform(daily("id"))


@pytest.mark.parametrize(
    "name",
    [
        "spark.sql.streaming.unsupportedOperationCheck",
        "spark.sql.streaming.statefulOperator.useStrictDistribution",
        "spark.sql.streaming.stateStore.commitValidation.enabled",
    ],
)
def test_settings_that_break_the_guarantee_are_rejected(
    spark: SparkSession, stream: DataFrame, tmp_path: Path, name: str
) -> None:
    spark.conf.set(name, "false")
    with refused(f"{name}=false: .* Set it to true"):
        stream.transform(daily("id", catalog=tmp_path / "c"))
    spark.conf.set(name, "true")
    stream.transform(daily("id", catalog=tmp_path / "c"))


def test_an_arrow_compression_that_python_cannot_read_is_rejected(
    spark: SparkSession, stream: DataFrame, tmp_path: Path
) -> None:
    """Spark's lz4 fails on a column of empty strings, in streams and batches."""
    name = "spark.sql.execution.arrow.compression.codec"
    spark.conf.set(name, "LZ4")
    operator = daily("id", catalog=tmp_path / "c")
    frames = (stream, spark.range(1).select(F.lit("").alias("id")))
    for frame in frames:
        with refused(f"{name}=LZ4: .* every value is null or empty.* Set it to zstd or none"):
            frame.transform(operator)
    spark.conf.set(name, "zstd")
    for frame in frames:
        frame.transform(operator)
    assert list((tmp_path / "c").rglob("*")) == [], "the check leaves nothing behind"


def test_too_many_partitions_for_a_local_master_are_warned_about(
    spark: SparkSession, stream: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warned(**options: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            stream.transform(daily("id", catalog=tmp_path / "c", **options))
        return [str(w.message) for w in caught if issubclass(w.category, DedupWarning)]

    assert warned() == []
    # Several shards of a partition share its session.
    assert warned(shards=900) == []
    spark.conf.set("spark.sql.shuffle.partitions", "8")
    assert warned() == []
    spark.conf.set("spark.sql.shuffle.partitions", "9")
    (text,) = warned(shards=2)
    assert text.startswith("spark.sql.shuffle.partitions=9 on a local master with 2 cores: each")
    assert 'spark.conf.set("spark.sql.shuffle.partitions", "2")' in text
    monkeypatch.setattr(checks, "master_of", lambda _: "spark://somewhere:7077")
    assert warned(shared_local=True) == []


@pytest.mark.parametrize("given", ["auto", *map(long, ("", " "))])
def test_an_unknown_number_of_partitions_is_rejected_for_streams(
    stream: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    # Databricks takes it; Spark itself refuses everything but numbers.
    found = checks.setting
    monkeypatch.setattr(
        checks,
        "setting",
        lambda s, name, d: given if name == checks.PARTITIONS else found(s, name, d),
    )
    numbered = dedup_by_sequence("src", "n", expire_after="1 day")
    for operator in (daily("id", catalog=tmp_path / "c"), numbered):
        with pytest.raises(ConfigError, match=f"is '{given}', so the number of shards is unknown"):
            stream.transform(operator)
    stream.transform(daily("id", catalog=tmp_path / "c", shards=2))
    # A batch gives the same answer with any number.
    rows = stream.sparkSession.createDataFrame([("a",), ("a",)], "id string")
    assert rows.transform(daily("id", catalog=None)).count() == 1


def test_a_second_operator_in_one_query_is_rejected(stream: DataFrame, tmp_path: Path) -> None:
    first = stream.transform(daily("id", catalog=tmp_path / "c"))
    with refused("This query already has a dedup_by_id or another applyInPandasWithState.*"
                 "Give one composite ID"):  # fmt: skip
        first.transform(daily("n", catalog=tmp_path / "d", metrics="b"))
    with refused("already has"):
        first.where("n > 5").withColumn("m", F.lit(1)).transform(
            daily("n", catalog=tmp_path / "d", metrics="b")
        )
    stateful = stream.groupBy("id").applyInPandasWithState(
        lambda key, frames, state: frames, SCHEMA, "n long", "append", GroupStateTimeout.NoTimeout
    )
    with refused("already has a dedup_by_id or another applyInPandasWithState"):
        stateful.transform(daily("id", catalog=tmp_path / "c"))
    # Spark itself sees the two of a union, when the query starts.
    second = stream.transform(daily("id", catalog=tmp_path / "d", metrics="b"))
    with pytest.raises(
        Exception, match="Multiple applyInPandasWithStates are not supported"
    ) as refusal:
        (
            first.unionAll(second)
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "ck"))
            .start()
        )

    told = cause(refusal.value)
    assert isinstance(told, ConfigError)
    assert "Unite the inputs first and de-duplicate them together" in str(told)


def test_update_mode_is_rejected_with_the_remedy(stream: DataFrame, tmp_path: Path) -> None:
    unique = stream.transform(daily("id", catalog=tmp_path / "c"))
    writer = unique.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "ck"))
    with pytest.raises(Exception, match="applyInPandasWithState in append mode") as refusal:
        writer.outputMode("update").start()
    told = cause(refusal.value)
    assert isinstance(told, ConfigError)
    assert "Start the query without outputMode('update')" in str(told)


def test_a_watermark_before_the_operator_is_rejected(stream: DataFrame, tmp_path: Path) -> None:
    operator = daily("id", catalog=tmp_path / "c")
    marked = stream.withWatermark("ts", "1 hour")
    with refused(
        r"withWatermark\('ts', ...\) stands before dedup_by_id.* Declare it after: .*"
        r"withWatermark\('ts', ...\)"
    ):
        marked.transform(operator)
    with refused(r"withWatermark\('time', ...\)"):
        marked.withColumnRenamed("ts", "time").transform(operator)
    with refused("stands before dedup_by_id"):
        marked.drop("ts").transform(operator)
    stream.transform(operator).withWatermark("ts", "1 hour")
    # It is looked for in the plan, not in what is printed of it.
    stream.sparkSession.conf.set("spark.sql.maxPlanStringLength", "20")
    with refused("stands before dedup_by_id"):
        marked.transform(operator)
    stream.withColumnRenamed("n", "EventTimeWatermark").transform(operator)


def test_batches_skip_the_checks_of_streams(
    spark: SparkSession, batch: DataFrame, tmp_path: Path
) -> None:
    """They need neither catalog nor state."""
    spark.conf.set("spark.sql.streaming.unsupportedOperationCheck", "false")
    once = batch.transform(daily("id", catalog=tmp_path / "no"))
    assert once.transform(daily("n", metrics="b")).count() == 0
    assert not os.path.exists(tmp_path / "no")

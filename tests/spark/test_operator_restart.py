"""Restarts: what may change between two runs, and what stops the query."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup import check_query, dedup_by_id, kernel
from dedup.catalog.cache import LocalCache
from dedup.catalog.certificate import certificate_of
from dedup.catalog.root import Root
from dedup.catalog.shard_files import ShardFiles
from dedup.catalog.store import Attempt, ShardStore
from dedup.core.entries import Entries
from dedup.core.keys import Keys
from dedup.core.segment import SegmentPlan
from dedup.core.sharding import derive_keys
from dedup.errors import CatalogError, ConfigError
from dedup.tools.repair.opening import read_checkpoint
from tests.spark.definitions import NESTED, differences, mistaken
from tests.support.oracle import Oracle
from tests.support.small_state import HORIZON_S, LATENESS_S, OPTIONS, query, tables, total
from tests.support.spark_query import ARROW, BASE, SCHEMA, Query, roll_back, row_set, splits


@pytest.mark.slow
def test_a_restart_with_other_shuffle_partitions(spark: SparkSession, tmp_path: Path) -> None:
    """The numbers of shards and of state partitions stay those of the first start."""
    given = tables(5)
    made = query(spark, tmp_path, given[:2])
    run = made.run()
    for number, (partitions, table) in enumerate(zip((7, 1, 2), given[2:], strict=True)):
        spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
        made.add_table(table)
        later = made.run()
        assert list(later.rows) == [2 + number]
        assert {m.shards for m in later.metrics} == {2}
        run.rows |= later.rows
    Oracle(HORIZON_S, LATENESS_S).check(given, run)
    (certificate,) = made.catalog.rglob("catalog.json")
    assert json.loads(certificate.read_text())["shards"] == 2


@pytest.mark.slow
def test_a_restart_that_cuts_the_files_otherwise(spark: SparkSession, tmp_path: Path) -> None:
    """Other cores, other splits of the files: the same copies win."""
    made = Query(spark, tmp_path / "here", OPTIONS, files_per_batch=3)
    for table in tables(4, rows=300):
        for copy in range(3):
            numbers = pa.array(table["n"].to_numpy() + 1_000_000 * copy)
            made.add_table(table.set_column(4, "n", numbers).cast(ARROW))
        if not (made.checkpoint / "commits" / "0").exists():
            made.run()
    there = made.copy(tmp_path / "there")
    here, as_cut = made.run(), splits(made)
    # What Spark cuts files by, which is the number of its cores where no one sets it.
    spark.conf.set("spark.sql.leafNodeDefaultParallelism", "1")
    assert splits(there) != as_cut, "the files are cut as before: this shows nothing"
    told = there.run()
    assert sorted(told.rows) == [1, 2, 3]
    for batch, rows in here.rows.items():
        assert row_set(told.rows[batch]) == row_set(rows)
    winners = Counter(
        row["n"] // 1_000_000 for row in here.all_rows() if row["verdict"] != "duplicate"
    )
    assert min(winners[copy] for copy in range(3)) > 20, "each file has copies that won"


def stopped(made: Query, message: str) -> None:
    with pytest.raises(StreamingQueryException, match=re.compile(message, re.S)):
        made.run()


PLAIN = {"timestamp": "ts", "horizon": "1 day", "verdict": "verdict", "lateness": "1 day"}


def test_what_the_certificate_holds_may_not_change(spark: SparkSession, tmp_path: Path) -> None:
    """The driver raises it if the user checks the query, and the tasks otherwise."""
    born = Query(spark, tmp_path / "born", PLAIN).add("a@0/s")
    born.run()
    born.add("a@1/s", "z@0/s")

    def refused(message: str, id: Any = "id", schema: str = SCHEMA, **options: Any) -> None:  # noqa: A002
        given = {"catalog": str(born.catalog)} | born.options | options
        source = spark.readStream.schema(schema).parquet(str(born.input))
        with pytest.raises(ConfigError, match=re.compile(message, re.S)):
            check_query(source, dedup_by_id(id, **given), checkpoint=born.checkpoint)

    refused(
        r"ID is src .string. now and was id .string.*withColumnRenamed\('src', 'id'\)", id="src"
    )
    refused(
        "ID is id .string. and src .string. now and was id .string.. Use the earlier ID",
        ["id", "src"],
    )
    refused("ID is upper.id. .string. of id string now and was id", F.upper("id"))
    refused("ID is id .binary. now .*or cast the column back",
            schema=SCHEMA.replace("id string", "id binary"))  # fmt: skip
    refused(
        r"timestamp is timestamp_seconds\(at\) .timestamp. of at bigint now and was ts .timestamp",
        timestamp=F.timestamp_seconds("at"),
    )
    refused("timestamp is processing time now and was ts .timestamp.. Use the earlier timestamp",
            timestamp=None, lateness=None)  # fmt: skip
    refused("stable_timestamps is True now and was False", stable_timestamps=True)
    refused("has 3 shards now and had 2; set shards=2", shards=3)
    changed = born.copy(tmp_path / "changed")
    changed.options["shards"] = 3
    stopped(changed, "dedup.errors.ConfigError: The query was started with other settings than its "
            "memory in .*catalog.json was made with: The query has 3 shards now")  # fmt: skip
    # Refused, not harmed: with the old options it continues.
    del changed.options["shards"]
    assert changed.run().told() == [["a@1 duplicate", "z@0 unique"]]


def test_what_is_kept_of_an_expression(spark: SparkSession) -> None:
    """In our own words: the same in another release, in another process, and on Connect."""
    frame = spark.createDataFrame([], SCHEMA)
    assert differences(frame) == []
    assert differences(frame) == [], "Spark numbers the variables of lambdas on"
    assert mistaken(spark.createDataFrame([], NESTED)) == []


@pytest.mark.slow
def test_an_alias_hides_no_other_id(spark: SparkSession, tmp_path: Path) -> None:
    """By its name alone the ID is the same; records that were never seen would be dropped."""
    made = Query(spark, tmp_path, PLAIN, id=F.col("src").alias("k")).add("x@0/a", "y@0/b")
    made.run()
    made.add("a@1/s", "b@1/t")
    made.id = F.col("id").alias("k")
    stopped(made, "ID is id .string. now and was src .string.")
    # Neither alias nor spelling make other bytes.
    made.id = F.expr("SRC AS other")
    assert made.run().told() == [["a@1 unique", "b@1 unique"]]
    made.add("c@2/s")
    made.id = "src"
    assert made.run().told() == [["c@2 duplicate"]]


def test_the_type_below_a_cast_is_part_of_the_id(spark: SparkSession, tmp_path: Path) -> None:
    made = Query(spark, tmp_path, PLAIN, id=F.col("n").cast("string")).add("a@0")
    made.run()
    made.before = lambda df: df.withColumn("n", F.col("n").cast("decimal(10,1)"))
    operator = dedup_by_id(made.id, catalog=str(made.catalog), **PLAIN)
    with pytest.raises(ConfigError, match=r"of n decimal\(10,1\) now and .* of n bigint"):
        check_query(made.before(made.source()), operator, checkpoint=str(made.checkpoint))


@pytest.mark.slow
def test_only_the_user_knows_that_a_column_was_renamed(spark: SparkSession, tmp_path: Path) -> None:
    made = Query(spark, tmp_path, dict(PLAIN)).add("a@0")
    made.run()
    made.add("a@1", "b@1")
    made.before = lambda df: df.withColumnsRenamed({"id": "key", "ts": "time"})
    made.then = lambda df: df.withColumnsRenamed({"key": "id", "time": "ts"})
    made.id = "key"
    made.options |= {"timestamp": "time"}
    with pytest.raises(ConfigError) as caught:
        check_query(
            made.before(made.source()),
            dedup_by_id("key", catalog=str(made.catalog), **made.options),
            checkpoint=made.checkpoint,
        )
    text = str(caught.value)
    assert "events.withColumnRenamed('key', 'id')" in text
    words = dict(re.findall(r"(accept_changed_\w+)='(\w+)'", text))
    assert set(words) == {"accept_changed_id", "accept_changed_timestamp"}
    made.options |= words
    assert made.run().told() == [["a@1 duplicate", "b@1 unique"]]
    # The consent covers this one change.
    made.add("c@2")
    made.id = "src"
    stopped(made, "ID is src .string. now and was id .string.")


@pytest.mark.slow
def test_micro_batches_without_records_come_before_a_first_start(
    spark: SparkSession, tmp_path: Path
) -> None:
    """They leave commits, and neither state nor catalog."""
    made = Query(spark, tmp_path, PLAIN)
    (made.input / "00000.parquet").touch()
    made._stamp(made.input / "00000.parquet")

    def asked() -> str:
        operator = dedup_by_id("id", catalog=str(made.catalog), **PLAIN)
        found = check_query(made.source(), operator, checkpoint=made.checkpoint)
        (one,) = [finding for finding in found if finding.rule == "checkpoint"]
        return one.evidence

    made.run()
    assert (made.checkpoint / "commits" / "0").exists()
    assert not list(made.catalog.rglob("catalog.json"))
    assert "has no state yet: this is a first start" in asked()
    with pytest.raises(ConfigError, match="none of its micro-batches has had a record"):
        read_checkpoint(Root(made.catalog), str(made.checkpoint), spark)
    made.add("a@0", "a@1")
    assert made.run().told() == [["a@0 unique", "a@1 duplicate"]]
    assert "resumes after micro-batch 1" in asked()
    made.add("a@2", "b@2")
    assert made.run().told() == [["a@2 duplicate", "b@2 unique"]]
    shutil.rmtree(made.catalog)
    with pytest.raises(CatalogError, match="The catalog of this query is missing"):
        asked()
    made.add("a@3")
    stopped(made, "The catalog of this query is missing")


def test_what_the_driver_can_ask_of_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    made = Query(spark, tmp_path, PLAIN).add("a@0")

    def asked() -> str:
        operator = dedup_by_id("id", catalog=str(made.catalog), **PLAIN)
        found = check_query(made.source(), operator, checkpoint=made.checkpoint)
        (one,) = [finding for finding in found if finding.rule == "checkpoint"]
        return one.evidence

    assert "has no state yet: this is a first start, and no ID is known." in asked()
    made.run()
    assert "resumes after micro-batch 0. Its catalog was made with the same ID" in asked()
    # A checkpoint that was deleted by mistake would emit all once more.
    shutil.move(made.checkpoint, tmp_path / "lost")
    assert "there is also query" in asked()
    assert f"dedup catalog adopt {made.catalog} --query" in asked()
    shutil.move(tmp_path / "lost", made.checkpoint)
    shutil.move(made.catalog, tmp_path / "safe")
    with pytest.raises(CatalogError, match="The catalog of this query is missing") as caught:
        asked()
    assert caught.value.remedy == "missing-catalog"
    # Both may be moved, together.
    made.catalog = tmp_path / "safe"
    shutil.move(made.checkpoint, tmp_path / "moved")
    made.checkpoint = tmp_path / "moved"
    assert "resumes after micro-batch 0" in asked()
    made.add("a@1", "b@1")
    assert made.run().told() == [["a@1 duplicate", "b@1 unique"]]


def test_a_catalog_that_went_away(spark: SparkSession, tmp_path: Path) -> None:
    made = Query(spark, tmp_path, PLAIN).add("a@0")
    made.run()
    made.add("a@1")
    shutil.move(made.catalog, tmp_path / "safe")
    stopped(made, "The catalog of this query is missing: .*restore it together with the checkpoint")
    shutil.rmtree(made.catalog)
    shutil.move(tmp_path / "safe", made.catalog)
    assert made.run().told() == [["a@1 duplicate"]]


@pytest.mark.slow
def test_a_state_that_went_away(spark: SparkSession, tmp_path: Path) -> None:
    """Spark refuses to continue without its files; if it begins again, the catalog detects it."""
    made = Query(spark, tmp_path, PLAIN).add("a@0")
    made.run()
    made.add("a@1")
    deltas = list((made.checkpoint / "state").rglob("1.delta"))
    shutil.move(made.checkpoint / "state", tmp_path / "state")
    with pytest.raises(StreamingQueryException):
        made.run()
    for delta in deltas:
        delta.parent.mkdir(parents=True, exist_ok=True)
        delta.write_bytes(empty_delta(spark))
    assert deltas
    stopped(made, "Micro-batch 1 found no Spark state although .* born in micro-batch 0")


def empty_delta(spark: SparkSession) -> bytes:
    """A file of the HDFS-backed state store that puts and removes nothing: its end alone."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    data = jvm.java.io.ByteArrayOutputStream()
    packed = jvm.java.io.DataOutputStream(jvm.net.jpountz.lz4.LZ4BlockOutputStream(data))
    packed.writeInt(-1)
    packed.close()
    return bytes(data.toByteArray())


def test_an_orphan_that_holds_a_live_id(spark: SparkSession, tmp_path: Path) -> None:
    """A zombie wrote a segment with an ID that no one has emitted: it must not be believed."""
    made = query(spark, tmp_path, tables(2))
    made.run()
    at_ms = int(BASE.timestamp()) * 1000 + 199_000
    start_ms = at_ms - at_ms % 60_000
    query_id = json.loads((made.checkpoint / "metadata").read_text())["id"]
    key = b"\x00" + b"ghost"
    keys = Keys.from_list([key])
    secret = certificate_of(Root(made.catalog), query_id).secret
    hashes = kernel.hash64(keys.data, keys.offsets, derive_keys(query_id, secret)[1])
    for shard in range(2):
        store = ShardStore(
            ShardFiles(
                Root(made.catalog),
                LocalCache(query_id, str(tmp_path / "cache"), 1 << 20),
                query_id,
                shard,
                secret,
            ),
            Attempt(20, "zombie", 1),
        )
        plan = SegmentPlan(start_ms, start_ms + 60_000, 0.01)
        segment, _ = store.write_segment(plan, [Entries(keys, hashes, np.array([at_ms]))])
        assert store.lookup(segment, keys, hashes).tolist() == [at_ms]
    made.add("ghost@199", "ghost@199")
    run = made.run()
    assert run.told() == [["ghost@199 duplicate", "ghost@199 unique"]]
    assert run.metrics[0].orphan_files == 4


@pytest.mark.slow
def test_options_that_may_change_on_restart(spark: SparkSession, tmp_path: Path) -> None:
    """Horizon, lateness, buckets, policies and sizing, with segments on the old grid."""
    fill = [f"f{n}@0" for n in range(1200)]
    given = {
        "timestamp": "ts",
        "horizon": "100 seconds",
        "lateness": "100 seconds",
        "verdict": "verdict",
        "state_budget_bytes": 16 << 10,
    }
    made = Query(spark, tmp_path, given)
    made.add("a@0", "b@0", "c@0", *fill)
    first = made.run()
    assert total(first, "segments_written") > 0

    def told(*texts: str, **options: Any) -> list[str]:
        made.options |= options
        made.add(*texts)
        (batch,) = made.run().told()
        return [text for text in batch if not text.startswith("f")]

    assert told("a@150", horizon="300 seconds", buckets=3) == ["a@150 duplicate"]
    assert told("b@150", "d@150", horizon="50 seconds", bucket_length="7 seconds") == [
        "b@150 unique", "d@150 unique",
    ]  # fmt: skip
    assert told("b@170", "e@40", lateness="10 seconds", late="drop", fpr=0.1) == [
        "b@170 duplicate", "e@40 late",
    ]  # fmt: skip
    # Now the watermark is 160; horizon, lateness and policy have their first values again.
    assert told("d@159", "e@41", "-@0", **given | {"late": "emit", "null_ids": "drop"}) == [
        "-@0 null_id", "d@159 duplicate", "e@41 late",
    ]  # fmt: skip
    assert told("e@200", state_budget_bytes=1 << 20, max_future="1 second") == ["e@200 duplicate"]


def test_a_payload_column_added_on_restart(spark: SparkSession, tmp_path: Path) -> None:
    made = Query(spark, tmp_path, dict(PLAIN)).add("a@0")
    made.run()
    made.add("a@1", "b@1")
    made.schema = SCHEMA + ", more array<int>"
    run = made.run()
    assert run.told() == [["a@1 duplicate", "b@1 unique"]]
    assert {row["more"] for row in run.all_rows()} == {None}


@pytest.mark.slow
def test_expired_segments_are_deleted_when_spark_cannot_roll_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    given = tables(12, rows=600)
    made = query(
        spark, tmp_path, given, horizon="100 seconds", bucket_length="50 seconds",
        lateness="20 seconds",
    )  # fmt: skip
    run = made.run()
    assert total(run, "segments_deleted") > 0
    last = run.metrics[-1]
    files = [*made.catalog.rglob("*.sst")]
    assert len(files) == last.segments + last.segments_pending
    assert len(files) == total(run, "segments_written") - total(run, "segments_deleted")
    assert len([*made.catalog.rglob("*.filter")]) == len(files)
    # As far back as Spark keeps its logs, everything that a manifest names is there.
    again = made.copy(tmp_path / "again")
    roll_back(again.checkpoint, 10)
    replayed = again.run()
    for batch in (10, 11):
        assert row_set(replayed.rows[batch]) == row_set(run.rows[batch])
    Oracle(100, 20).check(given, run)


def test_two_queries_on_one_catalog(spark: SparkSession, tmp_path: Path) -> None:
    given = {"timestamp": "ts", "horizon": "1 day", "verdict": "v", "catalog": str(tmp_path / "c")}
    for name in ("one", "two"):
        made = Query(spark, tmp_path / name, given).add("a@0").add("a@1")
        run = made.run()
        assert run.told("v") == [["a@0 unique"], ["a@1 duplicate"]]
        # It may replace a query whose checkpoint was lost.
        assert [m.other_queries for m in run.metrics] == [int(name == "two"), 0]
    assert len([*(tmp_path / "c").glob("*/catalog.json")]) == 2

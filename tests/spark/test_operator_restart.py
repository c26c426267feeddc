"""Restarts: what may change between two runs, what stops the query, and its hash keys."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup import check_query, dedup_by_id
from dedup.catalog.certificate import Certificate, load_certificate
from dedup.catalog.layout import certificate_path, shard_path
from dedup.core.sharding import derive_keys, filter_key_id
from dedup.errors import CatalogError, ConfigError, StateError, cause
from dedup.spark.driver.build import Operator
from dedup.spark.driver.plans import plan_of, user_columns
from dedup.spark.options import Options
from dedup.spark.plan import Plan
from dedup.spark.versions import numbers, to_arrow
from dedup.storage.root import Root
from dedup.tools import explain, verify
from dedup.tools import inspect as inspect_catalog
from dedup.tools.repair.opening import read_checkpoint
from tests.spark.definitions import NESTED, differences, mistaken
from tests.support.oracle import Oracle
from tests.support.small_state import HORIZON_S, LATENESS_S, query, tables, total
from tests.support.spark_query import SCHEMA, Query, Run, roll_back, row_set, seeded


def stopped(made: Query, message: str) -> None:
    with pytest.raises(StreamingQueryException, match=re.compile(message, re.S)):
        made.run()


PLAIN = {"timestamp": "ts", "horizon": "1 day", "verdict": "verdict", "lateness": "1 day"}


def test_a_restart_with_settings_that_differ_from_the_certificate_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """`check_query` raises the error on the driver, and tasks raise it otherwise."""
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
            "memory in .*certificate.json was made with: The query has 3 shards now")  # fmt: skip
    # Refused, not harmed: with the old options it continues.
    del changed.options["shards"]
    assert changed.run().told() == [["a@1 duplicate", "z@0 unique"]]


def test_the_description_of_an_expression_never_changes(spark: SparkSession) -> None:
    """It is the same in another release, in another process, and on Connect."""
    frame = spark.createDataFrame([], SCHEMA)
    assert differences(frame) == []
    assert differences(frame) == [], "Spark numbers the variables of lambdas on"
    assert mistaken(spark.createDataFrame([], NESTED)) == []


@pytest.mark.slow
def test_a_renamed_column_is_accepted_only_with_the_users_consent(
    spark: SparkSession, tmp_path: Path
) -> None:
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
    words = set(re.findall(r"accept=\['(\w+)', '(\w+)'\]", text))
    assert len(words) == 1
    made.options["accept"] = words.pop()
    assert made.run().told() == [["a@1 duplicate", "b@1 unique"]]
    # The consent covers this one change.
    made.add("c@2")
    made.id = "src"
    stopped(made, "ID is src .string. now and was id .string.")


def test_check_query_reports_the_state_of_a_checkpoint_and_its_catalog(
    spark: SparkSession, tmp_path: Path
) -> None:
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
    # Tasks begin no second catalog, even if the driver has not checked before.
    shutil.move(made.catalog, tmp_path / "away")
    made.add("a@2")
    stopped(made, "The catalog of this query is missing: .*restore it together with the checkpoint")
    assert not [*made.catalog.rglob("certificate.json")]


@pytest.mark.slow
def test_lost_state_files_stop_the_query(spark: SparkSession, tmp_path: Path) -> None:
    """Spark refuses to continue without them. If Spark begins again, the catalog detects it."""
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


def test_a_payload_column_may_be_added_on_restart(spark: SparkSession, tmp_path: Path) -> None:
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


@pytest.mark.skipif(
    numbers(pyspark.__version__) >= (4, 1),
    reason="Spark 4.1 and newer do not commit a micro-batch of which only a part was read",
)
def test_a_micro_batch_of_which_only_a_part_was_read_is_reported_and_runs_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    ids = [[f"{batch}-{n}@{batch}" for n in range(40)] for batch in range(3)]
    made = Query(spark, tmp_path, PLAIN).add(*ids[0]).add(*ids[1])
    seen: list[int] = []

    def first_row_of_the_second(df: DataFrame) -> list[Any]:
        seen.append(1)
        return df.limit(1).collect() if len(seen) == 2 else df.collect()

    whole, part = made.run(first_row_of_the_second).metrics
    whole.check_together()
    assert (part.shards, part.shard_count) == (1, 2)
    with pytest.raises(StateError, match="Only 1 of 2 shards took part in micro-batch 1"):
        part.check_together()
    made.add(*ids[2])
    stopped(made, r"state.*does not exist|Error reading")
    # As the remedy of damaged state says.
    roll_back(made.checkpoint, 1)
    assert made.run().told() == [sorted(f"{each} unique" for each in of) for of in ids[1:]]


def missing(made: Query) -> list[str]:
    """Files at the root of segments that the query's newest states look into, but not there."""
    root = Root(made.catalog)
    known = read_checkpoint(root, str(made.checkpoint), made.spark)
    there = {found.name for found in root.list()}
    names = (
        shard_path(known.query_id, shard, segment.name + suffix)
        for shard, state in known.states.items()
        for segment in state.manifest.segments()
        for suffix in (".sst", ".filter")
    )
    return [name for name in names if name not in there]


BRIEF = {"horizon": "100 seconds", "bucket_length": "50 seconds", "lateness": "20 seconds"}


def test_a_copy_of_a_checkpoint_continues_beside_its_original(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Both give the right rows, detect each other, and delete nothing."""
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    given = tables(6, rows=600)
    made = query(spark, tmp_path / "original", given[:1], **BRIEF)
    run = made.run()
    copy = replace(made, folder=tmp_path / "copy", options=dict(made.options))
    copy.input, copy.catalog = made.input, made.catalog
    shutil.copytree(made.checkpoint, copy.checkpoint)
    # A run of one micro-batch would stay invisible.
    for table in given[1:3]:
        made.add_table(table)
    theirs = Run(rows=dict(run.rows))
    run.rows |= made.run().rows
    copy.added = made.added
    for table in given[3:]:
        copy.add_table(table)
    for one, so_far in ((copy, theirs), (made, run)):
        later = one.run()
        so_far.rows |= later.rows
        Oracle(100, 20).check(given, so_far)
        assert {m.branches for m in later.metrics} == {1}
        assert total(later, "segments_expired") > 0
        assert total(later, "segments_deleted") == total(later, "orphans_deleted") == 0
    assert missing(made) == missing(copy) == []


def test_segments_of_a_start_that_failed_are_deleted_later(
    spark: SparkSession, tmp_path: Path
) -> None:
    """They hold IDs that no start has emitted, and lookups ignore them."""
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    given = tables(7, rows=1600)
    made = query(spark, tmp_path, given[:3])
    run = Run()

    def sink(rows: DataFrame) -> list[Any]:
        told = to_arrow(rows).to_pylist()
        if len(run.rows) == 2:
            raise ArithmeticError("the sink is away")
        run.rows[len(run.rows)] = told
        return told

    with pytest.raises(StreamingQueryException, match="the sink is away"):
        made.run(sink)
    for table in given[3:6]:
        made.add_table(table)
    on = made.run()
    assert on.metrics[0].orphan_files > 0
    made.add_table(given[6])
    last = made.run()
    assert last.metrics[0].orphans_deleted > 0
    assert (last.metrics[0].orphan_files, missing(made)) == (0, [])
    run.rows |= on.rows | last.rows
    Oracle(HORIZON_S, LATENESS_S).check(given, run)


def test_two_queries_may_share_a_catalog(spark: SparkSession, tmp_path: Path) -> None:
    given = {"timestamp": "ts", "horizon": "1 day", "verdict": "v", "catalog": str(tmp_path / "c")}
    for name in ("one", "two"):
        made = Query(spark, tmp_path / name, given).add("a@0").add("a@1")
        run = made.run()
        assert run.told("v") == [["a@0 unique"], ["a@1 duplicate"]]
        # It may replace a query whose checkpoint was lost.
        assert [m.other_queries for m in run.metrics] == [int(name == "two"), 0]
    assert len([*(tmp_path / "c").glob("*/certificate.json")]) == 2


def certificate(query: Query) -> Certificate:
    query_id = json.loads((query.checkpoint / "metadata").read_text())["id"]
    found = load_certificate(Root(query.catalog), query_id)
    assert found is not None
    return found


def put(query: Query, changed: Certificate) -> None:
    Root(query.catalog).put_bytes(certificate_path(changed.query_id), changed.to_bytes())


def refusal(query: Query) -> str:
    with pytest.raises(StreamingQueryException) as stopped:
        query.run()
    return str(cause(stopped.value))


@pytest.mark.slow
def test_hash_keys_derive_from_a_secret_that_only_the_certificate_holds(
    spark: SparkSession, tmp_path: Path
) -> None:
    options = {"timestamp": "ts", "horizon": "1 hour", "state_budget_bytes": 1 << 14}
    query = Query(spark, tmp_path, options)
    for table in seeded(batches=3, rows=900, ids=1200, step_s=60, spread_s=60):
        query.add_table(table)
    first = query.run()
    born = certificate(query)
    assert len(born.secret) == 16
    assert born.hash_key_id == filter_key_id(born.query_id, born.secret)
    assert born.hash_key_id != filter_key_id(born.query_id)
    ids = {row["id"] for row in first.all_rows()}
    query.add(*(f"{one}@150" for one in sorted(ids)[:50]))
    assert query.run().all_rows() == [], "the next start draws another secret, and uses the first"
    assert certificate(query) == born
    assert verify(query.catalog).ok
    one = next(row for row in first.rows[0])
    told = explain(query.catalog, one["id"], checkpoint=query.checkpoint)
    assert [seen.time_ms for seen in told.seen]
    shown = [repr(born), json.dumps(inspect_catalog(query.catalog).to_json()), repr(told)]
    shown.append(repr(planned(query.source(), query)))
    files = [path for path in query.checkpoint.rglob("*") if path.is_file()]
    shown += [path.read_bytes().hex() for path in files]
    for text in shown:
        assert born.secret.hex() not in text
        assert repr(born.secret) not in text


def test_the_keys_of_a_first_start_that_failed_are_kept(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, {"horizon": "1 hour"}).add("a@1", "b@1")

    def fail(rows: object) -> list[object]:
        rows.collect()  # type: ignore[attr-defined]
        raise ArithmeticError("the sink is away")

    with pytest.raises(StreamingQueryException, match="the sink is away"):
        query.run(fail)
    born = certificate(query)
    assert sorted(row["id"] for row in query.add("a@2").run().all_rows()) == ["a", "b"]
    assert certificate(query) == born


@pytest.mark.slow
def test_a_certificate_with_another_secret_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """It comes from an abandoned start, or from another query's copy."""
    query = Query(spark, tmp_path, {"horizon": "1 hour", "state_budget_bytes": 1 << 14})
    query.add_table(seeded(batches=1, rows=2000, ids=2000, step_s=1)[0])
    query.run()
    born = certificate(query)
    query.add("a@2")
    strange = replace(born, secret=bytes(16), hash_key_id=filter_key_id(born.query_id, bytes(16)))
    put(query, strange)
    told = refusal(query)
    assert "The catalog does not belong to this checkpoint" in told
    assert "dedup remedies missing-catalog" in told
    problems = [p for _, report in verify(query.catalog).segments for p in report.problems]
    assert any("restore that file from a copy first" in problem for problem in problems)
    assert not any("the segment is damaged" in problem for problem in problems)
    put(query, born)
    assert [row["id"] for row in query.run().all_rows()] == ["a"]


def test_batches_draw_their_own_keys_and_keep_the_same_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, {"horizon": "1 hour"}).add("a@1", "a@1", "a@1", "b@1")
    rows = spark.read.schema(query.schema).parquet(str(query.input))
    operator = operator_of(query)
    found = [sorted((row.id, row.n) for row in operator(rows).collect()) for _ in range(3)]
    assert found[0] == found[1] == found[2], "the same one of several copies passes each time"
    plans = [planned(rows, query) for _ in range(2)]
    keys = {derive_keys("batch", plan.secret) for plan in plans} | {derive_keys("batch")}
    assert len(keys) == 3


def operator_of(query: Query) -> Operator[Options]:
    return dedup_by_id("id", catalog=str(query.catalog), **query.options)


def planned(rows: DataFrame, query: Query) -> Plan:
    options = operator_of(query).options
    return plan_of(user_columns(rows, options), options)

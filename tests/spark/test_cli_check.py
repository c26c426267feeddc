"""`dedup check` and `check_query` on what a real Spark writes, sets and plans."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from dedup import DedupListener, check_query, dedup_by_id, dedup_by_sequence
from dedup.cli import check as check_work
from dedup.cli.app import app as main
from dedup.cli.commands import App
from dedup.cli.flags import CheckFlags
from dedup.errors import ConfigError
from dedup.sinks import files_sink
from dedup.spark.driver.checkpoint_log import read_checkpoint
from dedup.spark.driver.stream_sources import stream_sources_of
from dedup.spark.versions import IS_SPARK_3
from dedup.storage.root import Root
from dedup.tools.check.findings import Finding, Level
from dedup.tools.repair.opening import read_checkpoint as read_states
from tests.support import state_stores
from tests.support.cli_job import Job
from tests.support.needs import needs_rescale, needs_spark_4
from tests.support.processes import dedup
from tests.support.spark_query import Query, listening, trace

app = App()
app.add(CheckFlags)
STATE = "spark.sql.streaming.stateStore."
((PROVIDER, ROCKSDB),) = state_stores.ROCKSDB.items()


def told(*arguments: object) -> tuple[int, dict[str, Any]]:
    """Exit code, and the findings by rule; none of these queries has two of a rule."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments] + ["--json"])
    body = json.loads(result.stdout)
    return result.exit_code, {finding["rule"]: finding for finding in body["findings"]}


def by_rule(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.rule: finding for finding in findings}


def sources_of(query: Query) -> set[str]:
    return {name for one in query.run().metrics for name, _, _ in one.slowest_sources}


def test_check_reads_the_settings_of_a_query_from_its_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, {"horizon": "1 hour", "timestamp": "ts"})
    with listening(spark, DedupListener(log=tmp_path / "log")):
        query.add("a@1", "b@2").add("a@3")
        # Both keep their values of the first start.
        assert query.run().metrics
        query.add("d@5")
        spark.conf.set("spark.sql.shuffle.partitions", "8")
        spark.conf.set(PROVIDER, ROCKSDB)
        metrics = query.run().metrics
    assert (metrics[-1].batch_id, metrics[-1].shards) == (2, 2)

    log = read_checkpoint(str(query.checkpoint))
    assert (log.query_id, log.batch_id) == (metrics[-1].query_id, 2)
    assert log.state_partitions == 2
    assert [source.kind for source in log.sources or ()] == ["file"]

    settings = (
        "--conf", "spark.master=local[2]", "--conf", "spark.sql.shuffle.partitions=8",
        "--conf", f"{PROVIDER}={ROCKSDB}",
    )  # fmt: skip
    code, found = told(
        query.checkpoint, "--catalog", query.catalog, "--log", tmp_path / "log", *settings
    )
    assert code == 0
    assert found["shuffle-partitions"]["level"] == "fine"
    assert "2 partitions" in found["shuffle-partitions"]["evidence"]


@needs_rescale
def test_a_state_that_spark_has_repartitioned_has_its_new_number_of_partitions(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.conf.set(PROVIDER, ROCKSDB)
    query = Query(spark, tmp_path, {"horizon": "1 hour"}).add("a@1", "b@2")
    assert query.run().metrics
    spark._streamingCheckpointManager.repartition(str(query.checkpoint), 3)
    metadata = query.checkpoint / "state/0/_metadata/metadata"
    assert '"numPartitions":2' in metadata.read_text(), "Spark keeps the old number there"
    _, found = told(query.checkpoint, "--catalog", query.catalog, "--conf", "spark.master=local")
    assert "The state has 3 partitions" in found["shuffle-partitions"]["evidence"]
    metrics = query.add("a@3", "c@4").run().metrics[-1]
    assert (metrics.shards, metrics.unique, metrics.duplicate) == (2, 1, 1)
    assert read_checkpoint(str(query.checkpoint)).state_partitions == 3


def test_metrics_name_the_source_partitions_that_have_clocks(
    spark: SparkSession, tmp_path: Path
) -> None:
    """From these names `dedup check` knows whether each source partition has a clock."""
    given = {"horizon": "1 hour", "timestamp": "ts"}
    assert sources_of(Query(spark, tmp_path / "one", given).add("a@1/x")) == {""}
    named = Query(spark, tmp_path / "own", given | {"source_partition": "src"}).add("a@1/x")
    assert sources_of(named) == {'"x"'}
    arrival = Query(spark, tmp_path / "arrival", {"horizon": "1 hour"}).add("a@1/x")
    assert sources_of(arrival) == set()


def test_micro_batches_without_records_have_no_catalog(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark starts no task for an empty file. After a record, a missing catalog is an error."""
    monkeypatch.setattr(check_work, "reading_session", lambda: nullcontext(job.spark))
    job.files.text("a.orc", "")
    job(schema="id string")
    code, found = told(job.output, "--conf", "spark.master=local[2]")
    assert code == 0
    assert "breaks the guarantee" not in {finding["level"] for finding in found.values()}
    with pytest.raises(ConfigError, match="none of its micro-batches has had a record"):
        read_states(Root(job.output / "_catalog"), str(job.output / "_checkpoint"), job.spark)
    look = CliRunner().invoke(main, ["watch", str(job.output), "--once"])
    assert look.exit_code == 2
    assert "does not show any query" in look.output
    job.files.table("b.orc", pa.table({"id": ["a"]}))
    assert job(schema="id string").figures.counts["emitted"] == 1
    assert told(job.output, "--conf", "spark.master=local[2]")[0] == 0
    shutil.rmtree(job.output / "_catalog")
    job.files.table("c.orc", pa.table({"id": ["a"]}))
    assert job.fails(schema="id string").remedy == "missing-catalog"
    result = CliRunner().invoke(app, [str(job.output)])
    assert result.exit_code == 2
    assert "holds no catalog of query" in result.output


def test_a_replay_finds_its_duplicates_within_horizon_plus_lateness(
    spark: SparkSession, tmp_path: Path
) -> None:
    """To the second. The rule about retention relies on it."""
    replayed = ["a@6600", "b@6601", "c@6602"]
    run = trace(
        spark, tmp_path, [replayed, ["new@10800"], ["newer@10801"], replayed],
        horizon="1 hour", lateness="10 minutes",
    )  # fmt: skip
    # The newest is 10801: a's age is 4201 seconds, b's 4200.
    assert run.told()[-1] == ["a@6600 late", "b@6601 duplicate", "c@6602 duplicate"]


def test_check_query_works_before_the_first_start(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(spark, tmp_path, {}).add("a@1")
    operator = dedup_by_id(
        "id", horizon="1 hour", timestamp="ts", source_partition="src",
        catalog=str(query.catalog), max_shard_batch_bytes=64 << 20,
    )  # fmt: skip
    limited = query.source().where("n > 0")
    found = by_rule(check_query(limited, operator))
    assert found["catalog-place"].level is Level.FINE
    assert "2, on 2 cores" in found["shuffle-partitions"].evidence
    # What follows the operator cannot be seen.
    unknown = {"windows-after", *["commit-validation"] * IS_SPARK_3}
    assert {rule for rule, f in found.items() if f.level is Level.UNKNOWN} == unknown
    assert not any(f.level is Level.BREAKS for f in found.values())
    assert not query.catalog.exists()

    spark.conf.set("spark.sql.shuffle.partitions", "64")
    spark.conf.set(STATE + "commitValidation.enabled", "false")
    unlimited = spark.readStream.schema("id string, ts timestamp").json(str(query.input))
    found = by_rule(check_query(unlimited, operator))
    assert found["commit-validation"].level is Level.BREAKS
    assert found["shuffle-partitions"].change == "spark.sql.shuffle.partitions=2"


def test_the_sources_of_a_stream_are_found_in_its_plan(spark: SparkSession, tmp_path: Path) -> None:
    ticks = spark.readStream.format("rate").option("rowsPerSecond", 5).load()
    files = Query(spark, tmp_path, {}).source()
    rate, file = stream_sources_of(ticks.select("value").union(files.select("n"))) or ()
    assert (rate.kind, rate.option("rowsPerSecond")) == ("rate", "5")
    assert (file.kind, file.option("maxFilesPerTrigger")) == ("file", "1")
    assert rate.complete
    assert file.complete
    assert stream_sources_of(spark.range(3)) is None
    assert stream_sources_of(object()) is None  # type: ignore[arg-type]  # as on Connect: no plan


@needs_spark_4
def test_a_sink_that_cannot_work_is_rejected_before_the_start(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The checks cover options, columns, folders and libraries."""
    stream = spark.readStream.format("rate").load()
    operator = dedup_by_id("value", horizon="1 hour", catalog=tmp_path / "catalog", verdict="said")
    cp = tmp_path / "checkpoint"
    files = {"path": str(tmp_path / "out"), "file.format": "csv"}

    def refused(sink: Any, words: str, **more: Any) -> None:
        with pytest.raises(ConfigError, match=words):
            check_query(stream, operator, sink=sink, **more)

    # A checkpoint that is not there yet is one of a first start.
    assert check_query(stream, operator, sink=("dedup_files", files), checkpoint=cp)
    refused(
        ("dedup_files", {**files, "file.formt": "csv"}), "Did you mean file.format", checkpoint=cp
    )
    nested = stream.selectExpr("struct(value) AS said")
    refused(("dedup_files", files), "said", checkpoint=cp, written=nested)
    refused(("dedup_kafka", {"kafka.bootstrap.servers": "localhost:1", "crate": True}), "crate")
    refused(("dedup_postgres", {"dsn": "postgresql://nobody@localhost:1/x"}), "table")
    refused(("dedup_delta", {"path": str(tmp_path / "t"), "create": "perhaps"}), "create")
    for strange in (("kafka", {}), "dedup_files", ("dedup_files",), print):
        refused(strange, "Formats are dedup_kafka")
    function = files_sink(str(tmp_path / "other"), checkpoint=str(cp), file_format="csv")
    assert check_query(stream, operator, sink=function)
    refused(function, "said", written=nested)
    numbered = dedup_by_sequence("value", "value", expire_after="1 hour")
    with pytest.raises(ConfigError, match="checkpointLocation"):
        check_query(stream, numbered, sink=("dedup_files", files))


def test_doctor_finds_this_machine_fit_and_leaves_nothing(tmp_path: Path) -> None:
    catalog = tmp_path / "new" / "catalog"
    done = dedup("doctor", "--catalog", catalog, "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["status"]) == (0, "ok"), done.stdout + done.stderr
    assert len(told["machines"]) == 2
    assert {"catalog", "processes", "kernel"} <= {one["rule"] for one in told["findings"]}
    assert list(tmp_path.iterdir()) == []

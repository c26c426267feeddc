"""Metrics of every micro-batch, by listener and by progress."""

from __future__ import annotations

import json
import logging
import shutil
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from dedup import BatchMetrics, DedupListener, dedup_by_id
from dedup.core.metrics import COUNTED, HELD, MAXIMA, STAGE_COLUMNS
from dedup.errors import ConfigError
from dedup.monitor.endpoint import Endpoint
from dedup.monitor.health import Status
from dedup.monitor.log_folder import read_logs
from dedup.monitor.query_log import QueryLog
from dedup.spark.observations import from_progress
from tests.support.spark_query import Query, finish, trace

HOUR = 3_600_000


def test_metrics_reach_a_listener(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[BatchMetrics] = []
    listener = DedupListener(seen.append, metrics="orders")
    other = DedupListener(lambda _: seen.append(None), metrics="another")  # type: ignore[arg-type]
    spark.streams.addListener(listener)
    spark.streams.addListener(other)
    try:
        query = Query(spark, tmp_path, {"timestamp": "ts", "horizon": "1 day", "metrics": "orders"})
        query.add("a@0", "b@0", "a@1").add("b@5", "c@5")
        run = query.run()
        deadline = time.monotonic() + 30
        while len(seen) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        spark.streams.removeListener(listener)
        spark.streams.removeListener(other)
    assert [(m.batch_id, m.records_in, m.unique, m.duplicate) for m in seen] == [
        (0, 3, 2, 1), (1, 2, 1, 1),
    ]  # fmt: skip
    assert seen == run.metrics
    assert next(iter(seen[0].stage_us)) == "pack"
    assert all(batch.stage_us["pack"] > 0 for batch in seen)
    assert seen[1].live_ids == 3
    assert seen[1].gc_lag_newest_ms == 86_400_000 + 3_600_000


def test_a_callback_that_fails_is_logged_and_harms_nothing(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    called = []

    def fail(metrics: BatchMetrics) -> None:
        called.append(metrics.batch_id)
        raise RuntimeError("the dashboard is down")

    caplog.set_level(logging.INFO, "dedup")
    listener, plain = DedupListener(fail), DedupListener()
    spark.streams.addListener(listener)
    spark.streams.addListener(plain)
    try:
        run = trace(spark, tmp_path, [["a@0"], ["a@0"]], horizon="1 day")
        deadline = time.monotonic() + 30
        while len(called) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        while "batch 1: " not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        spark.streams.removeListener(listener)
        spark.streams.removeListener(plain)
    assert run.told() == [["a@0 unique"], ["a@0 duplicate"]]
    assert called == [0, 1]
    assert "the dashboard is down" in caplog.text
    # Without a callback, a line per micro-batch.
    assert "batch 0: 1 in, 1 unique, 0 duplicate, 0 late" in caplog.text
    assert "batch 1: 1 in, 0 unique, 1 duplicate, 0 late" in caplog.text


def test_metrics_from_progress_as_json(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(spark, tmp_path, {"timestamp": "ts", "horizon": "1 day"}).add("a@0", "a@1")
    writer = query.result().writeStream.format("noop").trigger(availableNow=True)
    running = writer.option("checkpointLocation", str(query.checkpoint)).start()
    (metrics,) = finish(running)
    (progress,) = running.recentProgress
    assert from_progress(json.loads(progress.json)) == metrics
    assert from_progress(json.loads(progress.json), "another") is None
    assert from_progress(progress, "another") is None


def test_a_micro_batch_without_tasks_counts_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """It tells zeros where something is counted; what is remembered was not looked at."""
    empty = tmp_path / "input" / "empty.json"
    empty.parent.mkdir()
    empty.touch()
    lines = spark.readStream.schema("id string").json(str(empty.parent))
    operator = dedup_by_id("id", horizon="1 day", catalog=tmp_path / "catalog")
    writer = lines.transform(operator).writeStream.format("noop").trigger(availableNow=True)
    running = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert finish(running) == [], "there is nothing to tell a listener"
    (progress,) = running.recentProgress
    told = {name: row.asDict() for name, row in progress.observedMetrics.items()}
    assert told["dedup"]["shards"] == 0
    assert told["dedup_pack"] == {"pack_us": 0}
    assert {told["dedup"][name] for name in (*COUNTED, *STAGE_COLUMNS)} == {0}
    assert {told["dedup"][name] for name in (*HELD, *MAXIMA)} == {None}


def test_the_metrics_log_holds_every_micro_batch_and_the_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    listener = DedupListener(lambda _: None, log=tmp_path / "metrics")
    spark.streams.addListener(listener)
    try:
        query = Query(
            spark, tmp_path, {"timestamp": "ts", "horizon": "8 hours", "bucket_length": "1 hour",
                              "fpr": 0.003, "lateness": "2 hours", "state_budget_bytes": 1 << 19},
        )  # fmt: skip
        run = query.add("a@0", "b@1", "c@1", "a@1").add("d@2").run()
        deadline = time.monotonic() + 30
        logs: list[QueryLog] = []
        while not (logs and logs[0].ended) and time.monotonic() < deadline:
            time.sleep(0.05)
            logs = read_logs(tmp_path / "metrics")
    finally:
        spark.streams.removeListener(listener)
    (log,) = logs
    assert [batch for _, batch in log.batches] == run.metrics
    assert log.ended == "the run has ended"
    (watched,) = listener.watched()
    assert watched.health.status is Status.STOPPED
    assert [batch for _, batch in watched.batches] == run.metrics
    last = run.metrics[-1]
    assert (last.horizon_ms, last.lateness_ms, last.target_fpr) == (8 * HOUR, 2 * HOUR, 0.003)
    assert (last.bucket_ms, last.state_budget_bytes) == (HOUR, 1 << 19)
    # The GC watermark is ten hours behind hour 2; the buckets end at hours 1, 2 and 3.
    assert last.gc_watermark_ms is not None
    assert last.newest_ms == last.gc_watermark_ms + 10 * HOUR
    assert [ids for ids, _ in last.expiring] == [0, 0, 0, 0, 0, 0, 0, 4]
    assert last.fullest_shard_ids >= 2
    assert last.slowest_sources == (("", last.newest_ms, False),)


def test_a_job_that_was_run_again_is_between_two_runs(spark: SparkSession, tmp_path: Path) -> None:
    listener = DedupListener(lambda _: None, log=tmp_path / "metrics")
    spark.streams.addListener(listener)
    try:
        query = Query(spark, tmp_path, {"timestamp": "ts", "horizon": "1 day"})
        query.add("a@0").run()
        query.add("b@1").run()
        deadline = time.monotonic() + 30
        ends = 0
        while ends < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
            ends = sum(f.read_text().count('"ended"') for f in (tmp_path / "metrics").iterdir())
    finally:
        spark.streams.removeListener(listener)
    (log,) = read_logs(tmp_path / "metrics")
    assert (log.ended, len(log.batches)) == ("the run has ended", 2)
    health = log.watched(log.heard_ms or 0).health
    assert (health.status, health.reason) == (
        Status.OK,
        "between two runs; no fault so far; its lag is judged from five micro-batches on",
    )  # fmt: skip


def _ended(folder: Path, why: str) -> str | None:
    """What the log says of the run's end, once that is so."""
    deadline = time.monotonic() + 30
    while True:
        (log,) = read_logs(folder)
        if (log.ended and why in log.ended) or time.monotonic() > deadline:
            return log.ended
        time.sleep(0.05)


def test_the_log_tells_why_a_query_failed(spark: SparkSession, tmp_path: Path) -> None:
    listener = DedupListener(lambda _: None, log=tmp_path / "metrics")
    spark.streams.addListener(listener)
    try:
        query = Query(spark, tmp_path, {"timestamp": "ts", "horizon": "1 day"}).add("a@0")
        query.run()
        shutil.rmtree(tmp_path / "catalog")
        with pytest.raises(StreamingQueryException):
            query.add("b@0").run()
        ended = _ended(tmp_path / "metrics", "CatalogError")
    finally:
        spark.streams.removeListener(listener)
    assert ended is not None
    assert "CatalogError" in ended, ended


@pytest.mark.parametrize("sink", ["foreachBatch", "noop"])
def test_the_log_tells_what_the_users_python_raised(
    spark: SparkSession, tmp_path: Path, sink: str
) -> None:
    def fail_at_b(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if "b" in batch["id"].to_pylist():
                raise KeyError("region")
            yield batch

    listener = DedupListener(lambda _: None, log=tmp_path / "metrics")
    spark.streams.addListener(listener)
    try:
        query = Query(
            spark, tmp_path, {"timestamp": "ts", "horizon": "1 day"},
            then=lambda df: df.mapInArrow(fail_at_b, df.schema),
        ).add("a@0")  # fmt: skip
        query.run()
        query.add("b@0")
        writer = query.result().writeStream.option("checkpointLocation", str(query.checkpoint))
        ways = {
            "foreachBatch": query.run,
            "noop": lambda: finish(writer.format("noop").trigger(availableNow=True).start()),
        }
        with pytest.raises(StreamingQueryException):
            ways[sink]()
        ended = _ended(tmp_path / "metrics", "KeyError")
    finally:
        spark.streams.removeListener(listener)
    assert ended == "KeyError: 'region'"


def test_the_endpoint_serves_what_a_real_query_did(spark: SparkSession, tmp_path: Path) -> None:
    listener = DedupListener(lambda _: None, prometheus_port=0)
    url = f"http://127.0.0.1:{listener.prometheus_port}"
    spark.streams.addListener(listener)
    try:
        query = Query(
            spark, tmp_path, {"timestamp": "ts", "horizon": "8 hours", "source_partition": "src"}
        )
        run = query.add("a@0/slow", "b@1/slow", "a@1/slow").add("d@2/fast", "d@2/fast").run()
        deadline = time.monotonic() + 30
        status = None
        while status is not Status.STOPPED and time.monotonic() < deadline:
            time.sleep(0.05)
            with suppress(ConfigError):
                (watched,) = Endpoint(url).look(0)
                status = watched.health.status
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            text = answer.read().decode()
    finally:
        spark.streams.removeListener(listener)
    assert status is Status.STOPPED, "it says that the query is over"
    told, last = watched.batches[-1][1], run.metrics[-1]
    (name,) = {metrics.query_name or metrics.query_id for metrics in run.metrics}
    for verdict, count in (("unique", 3), ("duplicate", 2), ("late", 0)):
        assert f'dedup_records_total{{query="{name}",verdict="{verdict}"}} {count}.0' in text
    assert f'dedup_horizon_seconds{{query="{name}"}} 28800.0' in text
    # Which source partition and which shard hold the minimum, and when the checkpoint began.
    assert last.gc_source is not None
    assert "slow" in last.gc_source
    assert (told.gc_source, told.gc_shard) == (last.gc_source, last.gc_shard) != (None, None)
    assert told.slowest_sources == last.slowest_sources
    assert [("slow" in source, "fast" in source) for source, *_ in told.slowest_sources] == [
        (True, False), (False, True),
    ]  # fmt: skip
    assert f'dedup_checkpoint_first_batch_timestamp_seconds{{query="{name}"}}' in text
    assert f'dedup_query_failed{{query="{name}"}} 0.0' in text

"""Metrics of every micro-batch, by listener and by progress."""

from __future__ import annotations

import json
import logging
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from dedup import BatchMetrics, DedupListener, dedup_by_id
from dedup.core.metrics import NAMES
from dedup.errors import ConfigError
from dedup.spark.observations import as_dict, from_progress
from dedup.spark.versions import IS_SPARK_3
from dedup.tools.watch.endpoint import Endpoint
from dedup.tools.watch.health import Status
from dedup.tools.watch.query_log import read_logs
from dedup.tools.watch.watched import Watched
from tests.support.needs import long
from tests.support.spark_query import Query, finish, listening
from tests.support.waiting import wait_until

HOUR = 3_600_000


def test_metrics_reach_listeners(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A callback that fails is logged. A listener without a callback logs a line."""
    seen: list[BatchMetrics] = []
    called = []

    def fail(metrics: BatchMetrics) -> None:
        called.append(metrics.batch_id)
        raise RuntimeError("the dashboard is down")

    caplog.set_level(logging.INFO, "dedup")
    listeners = (
        DedupListener(seen.append, metrics="orders"),
        DedupListener(lambda _: seen.append(None), metrics="another"),  # type: ignore[arg-type]
        DedupListener(fail, metrics="orders"),
        DedupListener(metrics="orders"),
    )
    with listening(spark, *listeners):
        query = Query(spark, tmp_path, {"timestamp": "ts", "horizon": "1 day", "metrics": "orders"})
        query.add("a@0", "b@0", "a@1").add("b@5", "c@5")
        run = query.run()
        wait_until(lambda: len(seen) == len(called) == 2 and "batch 1: " in caplog.text)
    assert run.told() == [["a@0", "b@0"], ["c@5"]]
    assert [(m.batch_id, m.records_in, m.unique, m.duplicate) for m in seen] == [
        (0, 3, 2, 1), (1, 2, 1, 1),
    ]  # fmt: skip
    assert seen == run.metrics
    assert next(iter(seen[0].stage_us)) == "pack"
    assert all(batch.stage_us["pack"] > 0 for batch in seen)
    assert [batch.bytes_in > 20 * batch.records_in for batch in seen] == [True, True]
    assert seen[1].live_ids == 3
    assert seen[1].gc_lag_newest_ms == 86_400_000 + 3_600_000
    assert called == [0, 1]
    assert "the dashboard is down" in caplog.text
    assert "batch 0: 3 in, 2 unique, 1 duplicate, 0 late" in caplog.text
    assert "batch 1: 2 in, 1 unique, 1 duplicate, 0 late" in caplog.text


def test_metrics_are_read_from_progress_as_json(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(spark, tmp_path, {"timestamp": "ts", "horizon": "1 day"}).add("a@0", "a@1")
    running = query.writer().format("noop").start()
    (metrics,) = finish(running)
    (progress,) = running.recentProgress
    as_json = progress if IS_SPARK_3 else json.loads(progress.json)
    assert from_progress(as_json) == metrics
    assert from_progress(as_json, "another") is None
    assert from_progress(progress, "another") is None


def test_a_micro_batch_without_tasks_counts_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Counts are zero, and values of the state are null."""
    empty = tmp_path / "input" / "empty.json"
    empty.parent.mkdir()
    empty.touch()
    lines = spark.readStream.schema("id string").json(str(empty.parent))
    operator = dedup_by_id("id", horizon="1 day", catalog=tmp_path / "catalog")
    writer = lines.transform(operator).writeStream.format("noop").trigger(availableNow=True)
    running = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert finish(running) == [], "listeners get nothing"
    (progress,) = running.recentProgress
    told = {name: as_dict(row) for name, row in progress["observedMetrics"].items()}
    assert told["dedup"]["shards"] == 0
    assert told["dedup_pack"] == {"pack_us": 0, "bytes_in": 0, "bad_records": 0}
    assert {told["dedup"][name] for name in (*NAMES.counted, *NAMES.stage_columns)} == {0}
    assert {told["dedup"][name] for name in (*NAMES.held, *NAMES.greatest, *NAMES.times)} == {None}


def test_log_and_endpoint_show_every_micro_batch_and_the_end_of_the_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    listener = DedupListener(lambda _: None, log=tmp_path / "metrics", prometheus_port=0)
    url = f"http://127.0.0.1:{listener.prometheus_port}"
    looked: list[Watched] = []

    def stopped() -> bool:
        with suppress(ConfigError):
            looked[:] = Endpoint(url).look(0)
        return [one.health.status for one in looked] == [Status.STOPPED]

    with listening(spark, listener):
        query = Query(
            spark, tmp_path, {"timestamp": "ts", "horizon": "8 hours", "bucket_length": "1 hour",
                              "fpr": 0.003, "lateness": "2 hours", "state_budget_bytes": 1 << 19,
                              "source_partition": "src"},
        )  # fmt: skip
        query.add("a@0/slow", "b@1/slow", "c@1/slow", "a@1/slow").add("d@2/fast", "d@2/fast")
        run = query.run()
        assert wait_until(stopped), "it says that the query is over"
        wait_until(lambda: any(log.ended for log in read_logs(tmp_path / "metrics")))
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            text = answer.read().decode()
    (log,) = read_logs(tmp_path / "metrics")
    assert [batch for _, batch in log.batches] == run.metrics
    assert log.ended == "the run has ended"
    (watched,) = listener.watched()
    assert watched.health.status is Status.STOPPED
    assert [batch for _, batch in watched.batches] == run.metrics
    last = run.metrics[-1]
    assert (last.horizon_ms, last.lateness_ms, last.target_fpr) == (8 * HOUR, 2 * HOUR, 0.003)
    assert (last.bucket_ms, last.state_budget_bytes) == (HOUR, 1 << 19)
    # The GC watermark is ten hours behind the slow partition; the buckets end at hours 1, 2 and 3.
    assert last.gc_watermark_ms is not None
    assert last.newest_ms == last.gc_watermark_ms + 10 * HOUR + 1000
    assert [ids for ids, _ in last.expiring] == [0, 0, 0, 0, 0, 0, 0, 4]
    assert last.fullest_shard_ids >= 2
    (seen,) = looked
    told = seen.batches[-1][1]
    (name,) = {metrics.query_name or metrics.query_id for metrics in run.metrics}
    for verdict, count in (("unique", 4), ("duplicate", 2), ("late", 0)):
        assert f'dedup_records_total{{query="{name}",verdict="{verdict}"}} {count}.0' in text
    assert f'dedup_horizon_seconds{{query="{name}"}} 28800.0' in text
    # Which source partition and which shard hold the minimum, and when the checkpoint began.
    assert last.gc_source == '"slow"'
    assert (told.gc_source, told.gc_shard) == (last.gc_source, last.gc_shard)
    assert told.slowest_sources == last.slowest_sources
    assert [source for source, *_ in told.slowest_sources] == ['"slow"', '"fast"']
    assert f'dedup_checkpoint_first_batch_timestamp_seconds{{query="{name}"}}' in text
    assert f'dedup_query_failed{{query="{name}"}} 0.0' in text


@pytest.mark.parametrize("sink", ["foreachBatch", long("noop")])
@pytest.mark.slow
def test_the_log_names_the_error_of_the_users_python(
    spark: SparkSession, tmp_path: Path, sink: str
) -> None:
    def fail_at_b(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if "b" in batch["id"].to_pylist():
                raise KeyError("region")
            yield batch

    with listening(spark, DedupListener(lambda _: None, log=tmp_path / "metrics")):
        query = Query(
            spark, tmp_path, {"timestamp": "ts", "horizon": "1 day"},
            then=lambda df: df.mapInArrow(fail_at_b, df.schema),
        ).add("a@0").add("b@0")  # fmt: skip
        ways = {
            "foreachBatch": query.run,
            "noop": lambda: finish(query.writer().format("noop").start()),
        }
        with pytest.raises(StreamingQueryException):
            ways[sink]()
        wait_until(lambda: any(log.ended for log in read_logs(tmp_path / "metrics")))
    (log,) = read_logs(tmp_path / "metrics")
    assert log.ended == "KeyError: 'region'"

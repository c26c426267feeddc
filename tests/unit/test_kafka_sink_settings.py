"""What a sink remembers of its starts, and which of the client's errors reach the user."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dedup.errors import ConfigError, SinkError
from dedup.sinks import kafka_sink
from dedup.sinks.batch import new_batch
from dedup.sinks.foreach_batch import SinkFunction, query_of_checkpoint
from dedup.sinks.kafka.client_errors import client_log
from dedup.sinks.kafka.options import kafka_options
from dedup.sinks.kafka.records import record_shape
from dedup.sinks.kafka.slots import KafkaSlot
from dedup.sinks.kafka.work import KafkaWork
from dedup.sinks.ledger import Ledger
from dedup.sinks.options import located
from dedup.sinks.protocol import StagedBatch
from dedup.sinks.slice_store import SliceStore


def function() -> SinkFunction:
    return kafka_sink("localhost:9", checkpoint="checkpoint", topic="out")


def call(sink: SinkFunction, batch_id: int, *, fails: bool = False, start: str = "s") -> str:
    """What a call does around its Spark job."""
    run = sink._run("q", batch_id, start)
    sink._runs["q"] = (run, batch_id, not fails, start)
    return run


@pytest.mark.parametrize("batch_id", [6, 5, 0, 8])
def test_a_repeated_or_skipped_micro_batch_begins_another_run(batch_id: int) -> None:
    sink = function()
    first = call(sink, 5)
    assert call(sink, 6) == first
    assert call(function(), 7) != first
    assert call(sink, batch_id) != first


def test_another_start_begins_another_run_even_without_a_gap() -> None:
    sink = function()
    first = call(sink, 5)
    assert call(sink, 6, start="another") != first
    assert call(sink, 7, start="another") != first


def test_a_failed_micro_batch_must_be_published_before_the_next() -> None:
    sink = function()
    call(sink, 6, fails=True)
    with pytest.raises(SinkError, match="Micro-batch 6 was not published"):
        call(sink, 7)
    call(sink, 6)
    call(sink, 7)


def test_the_checkpoint_must_be_of_the_query_that_runs_this_micro_batch(tmp_path: Path) -> None:
    """A wrong checkpoint would publish in another query's name."""
    checkpoint = located(f"file://{tmp_path}")
    with pytest.raises(ConfigError, match="holds no checkpoint"):
        query_of_checkpoint(checkpoint, 0, "kafka_sink")
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    (tmp_path / "metadata").write_text('{"id": "the-query"}')
    (tmp_path / "offsets" / "5").touch()
    assert query_of_checkpoint(checkpoint, 5, "kafka_sink") == "the-query"
    for batch_id in (4, 6):
        with pytest.raises(ConfigError, match="is not the one that the query of"):
            query_of_checkpoint(checkpoint, batch_id, "kafka_sink")
    (tmp_path / "commits" / "5").touch()
    for batch_id in (5, 6):
        with pytest.raises(ConfigError, match="call it from foreachBatch alone"):
            query_of_checkpoint(checkpoint, batch_id, "kafka_sink")


@pytest.mark.parametrize("option", ["topic", "markers", "transactional.id.prefix"])
def test_a_sink_cannot_change_its_topic_markers_or_transactional_id(
    tmp_path: Path, option: str
) -> None:
    """Otherwise a second sink of the same name would take its own rows for published."""
    given = {"kafka.bootstrap.servers": "localhost:9", "topic": "one", "markers": "m",
             "checkpointLocation": str(tmp_path)}  # fmt: skip
    staged = StagedBatch(new_batch("q", "kafka", "run", 0), [])
    for more in ({}, {}, {option: "other"}):
        options = kafka_options(given | more)
        work = KafkaWork(options, record_shape([("value", "binary")], options))
        if not more:
            work.settle(Ledger(str(tmp_path), "q"), staged)
            continue
        with pytest.raises(ConfigError, match=f"Option {option} is 'other'.*another `name`"):
            work.settle(Ledger(str(tmp_path), "q"), staged)


def test_a_table_keeps_its_id_under_another_address(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), "q")
    ledger.settle({"path": "/a"}, table_id="t")
    ledger.settle({"path": "/b"}, table_id="t")
    with pytest.raises(ConfigError, match="Option path is '/a', and this sink has published"):
        ledger.settle({"path": "/a"}, table_id="another")
    ledger.settle({"path": "/b"}, table_id="t")
    with pytest.raises(SinkError, match="This is another table"):
        ledger.settle({"path": "/b"}, table_id="another")


def test_a_stalled_driver_does_not_lower_the_newest_published_micro_batch(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), "q")
    for batch_id in (0, 2, 1):
        ledger.note_published(batch_id)
    assert ledger.published() == 2


def test_two_queries_share_no_manifest_of_a_staging_folder(tmp_path: Path) -> None:
    rows = [pa.record_batch({"value": pa.array([b"a"], pa.binary())})]
    one, other = (SliceStore(str(tmp_path), name, "kafka") for name in ("one", "other"))
    staged = one.write(0, 0, rows)
    assert one.manifest(0, [staged]) == [staged]
    assert other.manifest(0, []) == []
    Ledger(str(tmp_path), "other").note_published(7)
    assert Ledger(str(tmp_path), "one").published() is None
    other.clean(7)
    assert [batch.num_rows for batch in one.read(staged)] == [1]


def test_a_manifest_whose_files_are_gone_is_refused_with_the_way_out(tmp_path: Path) -> None:
    rows = [pa.record_batch({"value": pa.array([b"a"], pa.binary())})]
    staging = SliceStore(str(tmp_path), "q", "kafka")
    first, second = staging.write(4, 0, rows), staging.write(4, 0, rows)
    staging.manifest(4, [first])
    assert staging.manifest(4, [second]) == [first]
    (tmp_path / "q" / first.file).unlink()
    with pytest.raises(SinkError, match=r"(?s)is missing .*Delete the manifest .*manifests/4.json"):
        list(staging.read(first))
    (tmp_path / "q" / "manifests/4.json").unlink()
    assert staging.manifest(4, [second]) == [second]


def test_a_manifest_of_another_micro_batch_is_rejected(tmp_path: Path) -> None:
    staging = SliceStore(str(tmp_path), "q", "kafka")
    staging.manifest(4, [])
    folder = tmp_path / "q/manifests"
    (folder / "4.json").rename(folder / "5.json")
    with pytest.raises(SinkError, match="it is the manifest of micro-batch 4"):
        staging.manifest(5, [])


def test_a_relative_checkpoint_means_the_same_in_every_process() -> None:
    options = kafka_options(
        {"kafka.bootstrap.servers": "a:9", "topic": "t", "checkpointLocation": "here"}
    )
    assert options.ledger == f"{os.getcwd()}/here/dedup-sinks/kafka"


def test_a_partitioner_function_has_a_stable_key() -> None:
    from dedup.sinks.kafka.options import partitioner_key

    def first(keys: pa.Array, values: pa.Array, count: int) -> np.ndarray:
        return np.zeros(len(keys), np.int64)

    assert partitioner_key(first) == partitioner_key(first)
    assert partitioner_key("key") == "key"


@pytest.mark.usefixtures("kafka_library")
def test_an_unreachable_broker_is_reported_within_30_seconds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = kafka_options(
        {
            "kafka.bootstrap.servers": "127.0.0.1:1",
            "kafka.max.block.ms": "1000",
            "topic": "out",
            "staging": str(tmp_path),
        }
    )
    began_s = time.monotonic()
    with pytest.raises(SinkError, match=r"at 127\.0\.0\.1:1: .*transport failure") as raised:
        KafkaSlot(options, "query", 0).initialise()
    assert time.monotonic() - began_s < 30
    assert "start the query again once the brokers answer" in str(raised.value)
    assert any("Connection refused" in record.getMessage() for record in caplog.records)


@pytest.mark.usefixtures("kafka_library")
@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        ("Fatal error: Local: This instance has been fenced by a newer instance", False),
        ("Failed to add partition: Producer attempted an operation with an old epoch", False),
        ("Topic geofenced-events: Broker: Topic authorization failed", True),
        ("SSL handshake failed", True),
    ],
)
def test_fencing_is_logged_at_debug_only(
    caplog: pytest.LogCaptureFixture, line: str, is_told: bool
) -> None:
    client_log.critical(line)
    assert bool(caplog.records) == is_told
    with caplog.at_level(logging.DEBUG, client_log.name):
        client_log.critical(line)
    assert caplog.records[-1].getMessage() == line

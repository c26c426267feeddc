"""A reader of committed records finds what the query wrote: once, and unchanged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import lit

from dedup import DedupListener
from dedup.errors import cause
from dedup.sinks import kafka_sink
from dedup.sinks.figures import SinkMetrics
from dedup.testing.sinks import once
from tests.kafka.campaign import DRIVER, MANIFEST, STAGE, TASK
from tests.kafka.records import make_topic, read_topic
from tests.kafka.sink_query import SinkQuery
from tests.kafka.watching import watched
from tests.support.query_contract import QueryContract
from tests.support.spark_query import listening
from tests.support.waiting import wait_until


class TestQuery(QueryContract):
    @pytest.fixture(params=["exactly-once", "atomic"])
    def query(self, request: pytest.FixtureRequest, sink: SinkQuery) -> Iterator[SinkQuery]:
        """While it runs, a reader of committed records sees each of them once."""
        whole = request.param == "atomic"
        sink.options["mode"] = request.param
        sink.steps = (*STAGE, *DRIVER, *(MANIFEST if whole else TASK))
        with watched(sink.address, sink.topic) as seen:
            yield sink
        assert max(seen.values(), default=0) <= 1


def test_mode_none_delivers_records_without_waiting_for_them(sink: SinkQuery) -> None:
    sink.numbers(range(100), range(100, 150), range(150, 400))
    heard: list[SinkMetrics] = []
    with listening(sink.spark, DedupListener(on_sink=heard.append)):
        sink.run(mode="none")  # it does not flush: the last records may be on their way
        wait_until(lambda: len(heard) == 3)
    # Tasks and the driver's part run in processes of their own, and the listener in this one.
    assert [(one.batch_id, one.sink, one.rows) for one in heard] == [
        (0, "kafka", 100), (1, "kafka", 50), (2, "kafka", 250),
    ]  # fmt: skip
    assert all(one.bytes > 8 * one.rows and one.task_us > 0 < one.driver_us for one in heard)
    assert {one.retries + one.undelivered for one in heard} == {0}
    wait_until(lambda: sink.found().total() >= 400)
    assert sink.found() == once(400)


def test_without_transactions_a_replay_is_written_again(sink: SinkQuery) -> None:
    """The control: a replay does reach a sink without transactions twice."""
    sink.numbers(range(100), range(100, 150))
    sink.run(mode="at-least-once")
    sink.forget_commit()
    sink.run(mode="at-least-once")
    assert sink.found() == once(150) + Counter(range(100, 150))


@pytest.mark.slow
def test_the_number_of_tasks_may_change_between_micro_batches(sink: SinkQuery) -> None:
    sink.numbers(range(100), range(100, 200))
    sink.run()
    for tasks, numbered in ((5, range(200, 300)), (1, range(300, 400)), (3, range(400, 500))):
        sink.change = lambda rows, tasks=tasks: rows.repartition(tasks, "key")
        sink.numbers(numbered)
        # The brokers' addresses may change as well.
        sink.options["kafka.bootstrap.servers"] = sink.address.replace("127.0.0.1", "localhost")
        sink.run()
    assert sink.found() == once(500)


def test_another_markers_topic_is_refused(sink: SinkQuery) -> None:
    sink.numbers(range(10), range(10, 20))
    sink.run()
    sink.forget_commit()
    make_topic(sink.address, f"{sink.topic}-others", 1, cleanup_policy="compact")
    assert "Give markers its earlier value" in failure(sink, markers=f"{sink.topic}-others")
    sink.run()
    assert sink.found() == once(20)


def test_records_are_written_as_they_are_given(sink: SinkQuery) -> None:
    other = make_topic(sink.address, f"{sink.topic}-b", 2)
    headers = [[("a", b"1"), ("a", None)], [], None]
    times = [datetime(2024, 5, 1, 12, 0, 0, 123_000, UTC), datetime(1971, 1, 1, tzinfo=UTC), None]
    table = pa.table(
        {
            "key": pa.array([b"\x00\xff", None, b""], pa.binary()),
            "value": pa.array([b"", b"\xfe", None], pa.binary()),
            "headers": pa.array(
                [h and [{"key": k, "value": v} for k, v in h] for h in headers],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
            "topic": [sink.topic, other, sink.topic],
            "partition": pa.array([2, 1, 0], pa.int32()),
            "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
            "another": ["is", "left", "alone"],
        }
    )
    del sink.options["topic"]
    sink.options["markers"] = f"{sink.topic}-markers"
    sink.change = lambda rows: rows
    sink.add(table)
    sink.run()
    found = {r.partition: r for r in read_topic(sink.address, sink.topic)}
    assert (found[2].key, found[2].value) == (b"\x00\xff", b"")
    assert found[2].headers == (("a", b"1"), ("a", None))
    assert found[2].timestamp_ms == int(times[0].timestamp() * 1000)  # type: ignore[union-attr]
    assert (found[0].key, found[0].value, found[0].headers) == (b"", None, ())
    assert abs(found[0].timestamp_ms - datetime.now(UTC).timestamp() * 1000) < 600_000
    [record] = read_topic(sink.address, other)
    assert (record.key, record.value, record.partition) == (None, b"\xfe", 1)
    assert record.timestamp_ms == 31_536_000_000


@pytest.mark.slow
def test_records_of_a_key_keep_the_order_of_the_rows(sink: SinkQuery) -> None:
    rows = [{"key": b"k%d" % (n % 7), "value": b"%06d" % n} for n in range(5_000)]
    sink.change = lambda frame: frame  # one file, one task
    sink.add(rows)
    sink.add(rows)
    sink.run()
    seen: dict[bytes | None, list[bytes | None]] = {}
    for record in sorted(read_topic(sink.address, sink.topic), key=lambda r: r.offset):
        seen.setdefault(record.key, []).append(record.value)
    for n in range(7):
        one = [row["value"] for row in rows if row["key"] == b"k%d" % n]
        assert seen[b"k%d" % n] == one + one


@pytest.mark.slow
def test_all_records_of_a_task_go_to_one_partition(sink: SinkQuery) -> None:
    sink.change = lambda rows: rows.repartition(2, "key")
    sink.numbers(range(100))
    sink.run(partitioner="task")
    assert {record.partition for record in read_topic(sink.address, sink.topic)} == {0, 1}


def test_a_function_chooses_the_partition(sink: SinkQuery) -> None:
    def by_value(keys: pa.Array, values: pa.Array, partitions: int) -> Any:
        return np.array([int(value[1:]) % partitions for value in values.to_pylist()])

    sink.numbers(range(90), range(90, 120))
    function = kafka_sink(
        sink.address, topic=sink.topic, checkpoint=str(sink.checkpoint), partitioner=by_value
    )
    sink.run_with(function)
    found = read_topic(sink.address, sink.topic)
    assert Counter(int(r.key or b"") for r in found) == once(120)
    assert all(int(r.key or b"") % 3 == r.partition for r in found)


def test_keys_go_to_the_partitions_that_javas_client_chooses(sink: SinkQuery) -> None:
    """The test calls `DefaultPartitioner` of Kafka's own client in a JVM."""
    keys = [b"", b"a", b"\x00", b"\xff" * 5, "schlüssel".encode(), b"k" * 1000]
    keys += [b"order-%d" % n for n in range(200)]
    sink.add([{"key": key, "value": b"x"} for key in keys])
    sink.run()
    jvm = sink.spark._jvm
    assert jvm is not None
    utils = jvm.org.apache.kafka.common.utils.Utils
    for record in read_topic(sink.address, sink.topic):
        assert record.key is not None
        assert utils.toPositive(utils.murmur2(record.key)) % 3 == record.partition


def failure(sink: SinkQuery, **options: str) -> str:
    with pytest.raises(StreamingQueryException) as caught:
        sink.run(**options)
    return str(cause(caught.value))


def test_an_oversized_record_is_named(sink: SinkQuery) -> None:
    sink.numbers(range(10), range(10, 20))
    sink.run()
    sink.add([{"key": b"small", "value": b"x"}, {"key": b"large", "value": b"x" * 3_000_000}])
    told = failure(sink)
    assert "key b'large'" in told
    assert "3,000,005 bytes is larger than the producer takes" in told
    assert sink.found() == once(20), "nothing of the micro-batch may be seen"


def test_bad_input_is_refused(sink: SinkQuery) -> None:
    sink.change = lambda rows: rows.withColumn("value", lit(1))
    sink.numbers(range(3))
    assert "Column `value` is int, and must be string or binary" in failure(sink)
    assert read_topic(sink.address, sink.topic) == []


@pytest.mark.slow
def test_sparks_own_sink_repeats_records_after_a_kill(sink: SinkQuery, tmp_path: Path) -> None:
    """The control: without this package, kills do repeat records."""
    sink.numbers(*(range(n, n + 60) for n in (0, 60, 120)))
    struck = tmp_path / "struck"

    def strike(batches):  # type: ignore[no-untyped-def]
        import os
        import signal
        import time

        yield from batches
        if not struck.exists():
            struck.touch()
            time.sleep(2)  # almost all that was handed over is with the broker by then
            os.kill(os.getpid(), signal.SIGKILL)

    # Large enough that no buffer on the way keeps them all.
    rows = sink.rows().selectExpr("key", "repeat(cast(value as string), 20000) value")
    broken = rows.repartition(1).mapInArrow(strike, rows.schema)
    own = {name: sink.options[name] for name in ("kafka.bootstrap.servers", "checkpointLocation")}
    stream = broken.writeStream.format("kafka").options(**own, topic=sink.topic)
    stream.trigger(availableNow=True).start().awaitTermination(120)
    assert struck.exists()
    found = Counter(record.key for record in read_topic(sink.address, sink.topic))
    assert set(found) == {b"%d" % n for n in range(180)}
    assert max(found.values()) > 1

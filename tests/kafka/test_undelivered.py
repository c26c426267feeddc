"""What a sink reports without being asked: lost records of mode `none`, and empty partitions."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from dedup.sinks.kafka import undelivered
from tests.kafka.broker import free_port
from tests.kafka.records import make_topic, read_topic
from tests.kafka.slots import Sink
from tests.support.waiting import wait_until

RUN = "run"
#: Sends three records in mode none, and is ended as Spark's daemon ends its workers.
WORKER = """
import os, signal, sys
from pathlib import Path
from tests.kafka.slots import Sink
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as Spark's daemon does; nohup ignores the signal
address, topic, folder = sys.argv[1:]
sink = Sink(address, topic, Path(folder), mode="none", kafka_linger_ms="60000")
sink.send("run", 0, 0, [sink.rows(range(3))])
os.kill(os.getpid(), signal.SIGHUP)
"""


def counted(line: logging.LogRecord) -> int:
    """How many records a line of the log says are lost."""
    return int(line.getMessage().split()[0])


def test_rejected_records_are_logged_and_counted(
    broker: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(broker, "undelivered", max_message_bytes=200)
    sink = Sink(broker, topic, tmp_path, mode="none", kafka_linger_ms="0")
    large = sink.rows([1, 2, 3]).set_column(1, "value", pa.array([b"v" * 1000] * 3))
    caplog.set_level(logging.WARNING, "dedup")
    sink.send(RUN, 0, 0, [sink.rows([0])])
    wait_until(lambda: len(read_topic(broker, topic)) == 1)  # apart from the large ones
    first = sink.send(RUN, 0, 0, [large])
    # The thread logs them although no further task comes.
    wait_until(lambda: "Message size too large" in caplog.text)
    wait_until(lambda: sum(map(counted, caplog.records)) == 3)
    second = sink.send(RUN, 1, 0, [sink.rows([4])])
    assert first.undelivered + second.undelivered == 3
    caplog.clear()
    sink.work.complete([second])
    assert f"lost {second.undelivered} records of micro-batch 1 or earlier" in caplog.text
    wait_until(lambda: len(read_topic(broker, topic)) == 2)


def test_a_worker_that_spark_ends_delivers_its_records(broker: str, tmp_path: Path) -> None:
    topic = make_topic(broker, "ended-worker")
    command = [sys.executable, "-c", WORKER, broker, topic, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (-signal.SIGHUP, "")
    assert len(read_topic(broker, topic)) == 3


def test_a_worker_that_ends_counts_its_undelivered_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Sink(f"127.0.0.1:{free_port()}", "nowhere", tmp_path, mode="none")
    sink.send(RUN, 0, 0, [sink.rows(range(3))])
    for each in undelivered._running:
        each.end()
    assert "3 records were not delivered, because this worker ends" in caplog.text


@pytest.mark.parametrize(("tasks", "empty"), [(2, 1), (3, 0)])
def test_partitions_that_no_task_fills_are_logged(
    broker: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, tasks: int, empty: int
) -> None:
    topic = make_topic(broker, f"by-task-{tasks}", 3)
    sink = Sink(broker, topic, tmp_path, mode="at-least-once", partitioner="task")
    caplog.set_level(logging.WARNING, "dedup")
    for batch_id in range(2):
        results = [sink.send(RUN, batch_id, n, [sink.rows([n])]) for n in range(tasks)]
        sink.work.complete(results)
    assert caplog.text.count(f"so {empty} of the 3 partitions of topic {topic} got no") == bool(
        empty
    )
    assert len(caplog.records) == bool(empty)

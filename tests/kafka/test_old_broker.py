"""The oldest supported broker: the sink publishes once, and the source reads it."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from pyspark.sql import DataFrame, SparkSession

from dedup import kafka_records
from dedup.errors import SourceError
from dedup.sources.kafka import FromGroup
from dedup.testing.sinks import once
from tests.kafka.old_broker import running_old_broker
from tests.kafka.records import delete_topic, make_topic
from tests.kafka.sink_query import SinkQuery
from tests.kafka.source_query import run
from tests.support.kafka_needs import VARIABLE, need_broker
from tests.support.needs import do_without
from tests.support.waiting import wait_until


@pytest.mark.slow
def test_sink_and_source_work_with_the_oldest_supported_broker(
    spark: SparkSession, tmp_path: Path
) -> None:
    need_broker()
    try:
        with running_old_broker(tmp_path) as address:
            check(spark, address, tmp_path)
    except (OSError, subprocess.TimeoutExpired) as error:
        do_without(VARIABLE, f"the old broker's jars cannot be fetched: {error}")


def remade(address: str, topic: str) -> bool:
    """Make a topic, unless ZooKeeper is still deleting the earlier one."""
    with suppress(KafkaException):
        return bool(make_topic(address, topic, 2))
    return False


def check(spark: SparkSession, address: str, folder: Path) -> None:
    topic = make_topic(address, "orders", 2)
    sink = SinkQuery(spark, address, topic, folder / "sink")
    sink.numbers(range(40), range(40, 60))
    sink.run()
    sink.forget_commit()
    sink.numbers(range(60, 80))
    sink.run()  # repeats a micro-batch
    assert sink.found() == once(80)

    def rows() -> DataFrame:
        return kafka_records(
            spark, address, topics=topic, record_id="offset", start=FromGroup("nobody"),
            checkpoint=folder / "source" / "checkpoint",
        )  # fmt: skip

    found = run(rows(), folder / "source")
    assert sorted(int(row.key) for row in found) == list(range(80))
    # It knows the topic by its ID.
    delete_topic(address, topic)
    assert wait_until(lambda: remade(address, topic))
    with pytest.raises(SourceError, match="was deleted and created again"):
        rows()

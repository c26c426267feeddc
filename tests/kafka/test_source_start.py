"""Where a query begins to read Kafka, what it tells Kafka, and topics that come, grow and go."""

from __future__ import annotations

import itertools
import json
import logging
import re
import time
import warnings
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import NewPartitions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup import BatchMetrics, DedupListener, dedup_by_id, kafka_records
from dedup.errors import ConfigError, DedupWarning, SourceError, StateError, cause
from dedup.sources.kafka import FromCheckpoint, FromGroup, FromOffsets, OffsetsToGroup
from dedup.sources.kafka.client_options import client_settings
from dedup.sources.kafka.cluster import Cluster
from dedup.sources.kafka.topic_ids import FILE
from dedup.tools import bootstrap, builtin_state
from tests.kafka.broker import Broker
from tests.kafka.records import admin, delete_topic, make_topic, partitions_of, send
from tests.kafka.source_query import offsets, run, start, written
from tests.support.needs import long, needs_spark_4
from tests.support.spark_query import forget_commits
from tests.support.waiting import wait_until

_numbers = itertools.count()
_WAIT = "kafka.fetch.max.wait.ms"


def new_topic(broker: str, partitions: int = 2) -> str:
    return make_topic(broker, f"begins-{next(_numbers)}", partitions)


def fill(broker: str, topic: str, *names: str, partition: int = 0, **more: Any) -> None:
    send(broker, topic, [{"value": n.encode(), "partition": partition, **more} for n in names])


def committed(broker: str, group: str, topic: str, partitions: int = 2) -> list[int]:
    asked = [TopicPartition(topic, n) for n in range(partitions)]
    request = ConsumerGroupTopicPartitions(group, asked)
    [future] = admin(broker).list_consumer_group_offsets([request]).values()
    return [one.offset for one in future.result().topic_partitions]


def commit(broker: str, group: str, topic: str, ends: dict[int, int]) -> None:
    asked = [TopicPartition(topic, n, end) for n, end in ends.items()]
    request = ConsumerGroupTopicPartitions(group, asked)

    def is_committed() -> bool:  # not at once on a broker whose coordinator loads
        [future] = admin(broker).alter_consumer_group_offsets([request]).values()
        with suppress(KafkaException):
            return all(one.error is None for one in future.result().topic_partitions)
        return False

    assert wait_until(is_committed, 30)


def values(spark: SparkSession, broker: str, topic: str, **given: Any) -> list[str]:
    """What a batch reads."""
    rows = kafka_records(spark, broker, topics=topic, stream=False, **given).collect()
    return sorted(row.value.decode() for row in rows)


def test_a_query_begins_at_the_given_start(spark: SparkSession, broker: str) -> None:
    topic = new_topic(broker)
    fill(broker, topic, "a0", "a1", "a2", timestamp=1_000_000)
    fill(broker, topic, "a3", timestamp=2_000_000)
    fill(broker, topic, "b0", "b1", partition=1, timestamp=1_000_000)
    everything = ["a0", "a1", "a2", "a3", "b0", "b1"]
    assert values(spark, broker, topic) == everything
    assert values(spark, broker, topic, start="earliest") == everything
    at = datetime.fromtimestamp(1_500, UTC)
    assert values(spark, broker, topic, start=at) == ["a3"]
    long_ago = datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)
    assert values(spark, broker, topic, start=long_ago) == everything
    given = FromOffsets({topic: {0: 2}})
    assert values(spark, broker, topic, start=given) == ["a2", "a3", "b0", "b1"]
    given = FromOffsets({topic: {0: 4, 1: 0}})
    assert values(spark, broker, topic, start=given) == ["b0", "b1"]
    given = FromOffsets({topic: {1: 1}}, otherwise="earliest")
    assert values(spark, broker, topic, start=given) == ["a0", "a1", "a2", "a3", "b1"]
    commit(broker, f"group-{topic}", topic, {0: 3})
    from_group = FromGroup(f"group-{topic}")
    assert values(spark, broker, topic, start=from_group) == ["a3", "b0", "b1"]
    assert values(spark, broker, topic, start=FromGroup("nobody")) == everything
    given = FromOffsets({topic: {1: 1}}, otherwise=from_group)
    assert values(spark, broker, topic, start=given) == ["a3", "b1"]
    # Nothing was committed by reading.
    assert committed(broker, f"group-{topic}", topic) == [3, -1001]


def test_a_query_begins_where_another_one_stopped(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    topic, other = new_topic(broker), new_topic(broker)
    begins = FromCheckpoint(str(tmp_path / "checkpoint"))
    with pytest.raises(ConfigError, match="holds no checkpoint"):
        values(spark, broker, topic, start=begins)
    fill(broker, topic, "a0", "a1")
    fill(broker, topic, "b0", partition=1)
    run(kafka_records(spark, broker, topics=topic), tmp_path)
    assert values(spark, broker, topic, start=begins) == []
    fill(broker, topic, "a2")
    fill(broker, topic, "b1", partition=1)
    assert values(spark, broker, topic, start=begins) == ["a2", "b1"]
    run(kafka_records(spark, broker, topics=topic), tmp_path)
    fill(broker, topic, "a3")
    assert values(spark, broker, topic, start=begins) == ["a3"]
    with pytest.raises(ConfigError, match="reads these topics from 0 sources"):
        values(spark, broker, other, start=begins)
    forget_commits(tmp_path / "checkpoint", 0)
    with pytest.raises(ConfigError, match="has committed no micro-batch"):
        values(spark, broker, topic, start=begins)


@needs_spark_4
def test_a_query_takes_over_from_spark_s_operator(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    """Its history is a range of the topic before, and the state of the old query."""
    topic = new_topic(broker)
    fill(broker, topic, "a", "b")
    fill(broker, topic, "c", partition=1)

    def records(**given: Any) -> DataFrame:
        rows = kafka_records(spark, broker, topics=topic, **given)
        return rows.select(F.col("value").cast("string").alias("id"), "timestamp")

    old = records().withWatermark("timestamp", "1 hour").dropDuplicatesWithinWatermark(["id"])
    assert sorted(row.id for row in run(old, tmp_path / "old")) == ["a", "b", "c"]
    fill(broker, topic, "b", "d", "d")
    checkpoint = str(tmp_path / "old" / "checkpoint")
    operator = dedup_by_id(
        "id", horizon="1 hour", timestamp="timestamp", catalog=str(tmp_path / "catalog"), shards=2
    )
    for name, history in (
        ("state", builtin_state(spark, checkpoint, delay="1 hour")),
        ("topic", records(stream=False).where("id < 'd'")),
    ):
        done = bootstrap(operator, history, tmp_path / name / "checkpoint")
        assert done.ids == 3
        goes_on = records(start=FromCheckpoint(checkpoint)).transform(operator)
        assert [row.id for row in run(goes_on, tmp_path / name)] == ["d"]


def test_no_query_begins_in_a_topic_that_was_made_again(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    topic = new_topic(broker)
    fill(broker, topic, "a0", "a1")
    checkpoint = str(tmp_path / "checkpoint")
    run(kafka_records(spark, broker, topics=topic, checkpoint=checkpoint), tmp_path)
    delete_topic(broker, topic)
    make_topic(broker, topic, 2)
    fill(broker, topic, "n0", "n1", "n2")
    with pytest.raises(SourceError, match="was deleted and created again"):
        values(spark, broker, topic, start=FromCheckpoint(checkpoint))


def test_a_stream_begins_at_the_end_of_partitions_without_a_group_offset(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    topic = new_topic(broker)
    fill(broker, topic, "a0", "a1")
    fill(broker, topic, "b0", partition=1)
    commit(broker, f"group-{topic}", topic, {0: 1})
    rows = kafka_records(
        spark, broker, topics=topic, start=FromGroup(f"group-{topic}", otherwise="latest")
    )
    query = start(rows, tmp_path, once=False)
    try:
        assert wait_until(lambda: len(written(rows, tmp_path)) == 1, 60)
        fill(broker, topic, "b1", partition=1)
        assert wait_until(lambda: len(written(rows, tmp_path)) == 2, 60)
    finally:
        query.stop()
    assert sorted(row.value for row in written(rows, tmp_path)) == [b"a1", b"b1"]


def test_group_offsets_wait_for_an_open_transaction_that_commits_them(broker: str) -> None:
    topic, group = new_topic(broker), "transactional-group"
    commit(broker, group, topic, {0: 1})
    settings = {"kafka.bootstrap.servers": broker, "kafka.max.block.ms": "1500"}
    cluster = Cluster(client_settings(settings))
    found = cluster.topic(topic)
    assert found is not None
    member = Consumer({"bootstrap.servers": broker, "group.id": group})
    producer = Producer({"bootstrap.servers": broker, "transactional.id": topic})
    producer.init_transactions(30)
    try:
        producer.begin_transaction()
        end = [TopicPartition(topic, 0, 2)]
        producer.send_offsets_to_transaction(end, member.consumer_group_metadata(), 30)
        with pytest.raises(
            ConfigError, match="no transaction that commits its offsets may be open"
        ):
            cluster.group_offsets(group, [found])
        Timer(0.5, producer.commit_transaction).start()
        assert cluster.group_offsets(group, [found]) == {topic: {0: 2}}
    finally:
        member.close()


def test_unavailable_start_offsets_are_refused(spark: SparkSession, broker: str) -> None:
    topic = new_topic(broker)
    fill(broker, topic, "a0", "a1", "a2")
    for future in admin(broker).delete_records([TopicPartition(topic, 0, 2)]).values():
        future.result()
    commit(broker, f"group-{topic}", topic, {0: 1})
    cases: list[tuple[Any, str]] = [
        (FromGroup(f"group-{topic}"), "offset 1, but Kafka has offsets 2 to 3"),
        (FromOffsets({topic: {0: 9}}), "offset 9, but Kafka has offsets 2 to 3"),
        (FromOffsets({topic: {5: 0}}), f"{topic}-5, which is not read"),
        (FromOffsets({"other": {0: 0}}), "other-0, which is not read"),
        (FromOffsets({topic: {0: -1}}), "offset -1, but Kafka has offsets 2 to 3"),
        (FromGroup("g", otherwise="newest"), "is unknown"),  # type: ignore[arg-type]
        (FromOffsets({}, FromGroup("g", "newest")), "is unknown"),  # type: ignore[arg-type]
        (FromOffsets({}, FromGroup(f"group-{topic}")), f"Group group-{topic} begins {topic}-0 at"),
    ]
    for given, said in cases:
        with pytest.raises(ConfigError, match=said):
            kafka_records(spark, broker, topics=topic, start=given)
    assert values(spark, broker, topic, start=FromOffsets({topic: {0: 2}})) == ["a2"]
    # The group's offset does not count in a partition that is listed.
    given = FromOffsets({topic: {0: 2}}, otherwise=FromGroup(f"group-{topic}"))
    assert values(spark, broker, topic, start=given) == ["a2"]


def test_brokers_that_do_not_answer_are_named(spark: SparkSession, broker: str) -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9"):
        kafka_records(spark, "127.0.0.1:9", topics="t", options={"kafka.max.block.ms": "1000"})


def test_both_clients_accept_java_credentials(
    spark: SparkSession, broker: str, broker_process: Broker
) -> None:
    topic = new_topic(broker)
    fill(broker, topic, "a0")

    def options(password: str) -> dict[str, str]:
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        return {
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": f'{login} username="alice" password="{password}";',
            "kafka.max.block.ms": "5000",
        }

    address, right = broker_process.sasl_address, options("alice-secret")
    assert values(spark, address, topic, options=right) == ["a0"]
    own = {**right, "kafka.sasl.username": "alice", "kafka.sasl.password": "alice-secret"}
    del own["kafka.sasl.jaas.config"]
    assert values(spark, address, topic, options=right, client_options=own) == ["a0"]
    with pytest.raises(ConfigError, match=r"credentials|password|[Aa]uthentication") as refused:
        kafka_records(spark, address, topics=topic, options=options("wrong-secret"))
    assert "wrong-secret" not in str(refused.value)


@pytest.mark.parametrize(("given", "wait_ms"), [({}, "10"), ({_WAIT: "70"}, "70")])
def test_fetch_max_wait_is_10_ms_unless_the_user_sets_it(
    spark: SparkSession, broker: str, given: dict[str, str], wait_ms: str
) -> None:
    rows: Any = kafka_records(spark, broker, topics=new_topic(broker), options=given)
    relation = rows._jdf.queryExecution().analyzed().collectLeaves().head()
    assert relation.extraOptions().get(_WAIT) == wait_ms


def test_a_checkpoint_takes_precedence_over_start(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    topic, checkpoint = new_topic(broker), tmp_path / "checkpoint"
    fill(broker, topic, "a0", "a1")

    def rows(**given: Any) -> Any:
        return kafka_records(spark, broker, topics=topic, checkpoint=checkpoint, **given)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(rows(start=FromOffsets({topic: {0: 1}})), tmp_path)
        fill(broker, topic, "a2")
        run(rows(), tmp_path)
    fill(broker, topic, "a3")
    with pytest.warns(DedupWarning, match="is ignored: the checkpoint"):
        got = run(rows(start=FromOffsets({topic: {0: 99}})), tmp_path)
    assert [row.value for row in sorted(got, key=lambda row: row.offset)] == [b"a1", b"a2", b"a3"]


@pytest.mark.slow
def test_offsets_of_finished_micro_batches_are_committed_to_a_group(
    spark: SparkSession, broker: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(broker)
    fill(broker, topic, "a0", "a1", "a2")
    fill(broker, topic, "b0", partition=1)
    shown = OffsetsToGroup(broker, f"shown-{topic}")
    other = OffsetsToGroup(broker, f"other-{topic}", query="another")
    away = OffsetsToGroup("127.0.0.1:9", "away", options={"kafka.max.block.ms": "1000"})
    taken = OffsetsToGroup(broker, f"taken-{topic}")
    member = Consumer({"bootstrap.servers": broker, "group.id": f"taken-{topic}"})
    member.subscribe([topic])
    member.poll(5)
    listeners = [shown, other, away, taken]
    for one in listeners:
        spark.streams.addListener(one)
    rows = kafka_records(spark, broker, topics=topic, options={"maxOffsetsPerTrigger": "2"})
    try:
        with caplog.at_level(logging.WARNING, "dedup"):
            assert len(run(rows, tmp_path)) == 4
            # Spark tells listeners on its own thread.
            assert wait_until(lambda: committed(broker, f"shown-{topic}", topic) == [3, 1], 30)
            fill(broker, topic, "a3")
            run(rows, tmp_path)
            assert wait_until(lambda: committed(broker, f"shown-{topic}", topic) == [4, 1], 30)
            assert wait_until(lambda: "offsets to group away" in caplog.text, 60)
            assert wait_until(lambda: f"group taken-{topic}" in caplog.text, 60)
    finally:
        for one in listeners:
            spark.streams.removeListener(one)
        member.close()
    assert committed(broker, f"other-{topic}", topic) == [-1001, -1001]
    assert all(end >= 0 for end in offsets(tmp_path)[topic].values())


@pytest.mark.slow
def test_partitions_and_topics_that_appear_are_read_from_their_beginning(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    first = make_topic(broker, f"grow-{next(_numbers)}", 1)
    second, checkpoint = f"{first}-more", tmp_path / "checkpoint"
    seen: list[BatchMetrics] = []
    listener = DedupListener(seen.append, metrics=first)
    spark.streams.addListener(listener)
    rows = kafka_records(
        spark, broker, pattern=f"{first}.*", record_id="offset", checkpoint=checkpoint,
        options={"kafka.metadata.max.age.ms": "500"},
    )  # fmt: skip
    hour_ms = 3_600_000
    base = 1_700_000_000_000
    unique = rows.transform(
        dedup_by_id(
            F.col("value"), horizon="10 hours", timestamp="timestamp", lateness="0 seconds",
            source_partition=["topic", "partition"], catalog=str(tmp_path / "catalog"),
            metrics=first, idle_timeout="2 seconds",
        )
    )  # fmt: skip

    def passed() -> list[str]:
        return sorted(row.value.decode() for row in written(unique, tmp_path))

    def sends(topic: str, names: str, hours: int, partition: int = 0) -> None:
        fill(broker, topic, *names, partition=partition, timestamp=base + hours * hour_ms)

    sends(first, "ab", 50)
    query = start(unique, tmp_path, once=False)
    try:
        assert wait_until(lambda: passed() == ["a", "b"], 60), query.exception()
        # A new partition, whose first records were there before anybody looked, hours behind.
        admin(broker).create_partitions([NewPartitions(first, 2)])[first].result()
        wait_until(lambda: partitions_of(broker, first) == 2, 20)
        sends(first, "cda", 45, 1)
        assert wait_until(lambda: passed() == ["a", "b", "c", "d"], 60), query.exception()
        make_topic(broker, second, 1)
        sends(second, "efb", 44)
        assert wait_until(lambda: passed() == list("abcdef"), 60), query.exception()
        assert wait_until(lambda: second in (checkpoint / FILE).read_text(), 30)
        # Those two are idle now: memory moves on with the first all the same.
        time.sleep(2.2)
        for number, name in enumerate("ghi"):
            sends(first, name, 70 + number)
            assert wait_until(lambda: name in passed(), 60), query.exception()  # noqa: B023
    finally:
        query.stop()
        spark.streams.removeListener(listener)
    assert passed() == list("abcdefghi")
    assert wait_until(
        lambda: max(m.gc_watermark_ms or 0 for m in seen) > base + 55 * hour_ms, 30
    ), [m.gc_watermark_ms for m in seen]


@pytest.mark.parametrize("again", [long("fewer"), long("same"), "more"])
def test_a_recreated_topic_is_refused(
    spark: SparkSession, broker: str, tmp_path: Path, again: str
) -> None:
    topic, checkpoint = new_topic(broker, 1), tmp_path / "checkpoint"
    fill(broker, topic, *(f"old{n}" for n in range(3)))

    def rows() -> Any:
        return kafka_records(spark, broker, topics=topic, checkpoint=checkpoint)

    run(rows(), tmp_path)
    delete_topic(broker, topic)
    with pytest.raises(SourceError, match=f"Topic {topic} does not exist any more"):
        rows()
    make_topic(broker, topic, 1)
    fill(broker, topic, *(f"new{n}" for n in range({"fewer": 1, "same": 3, "more": 5}[again])))
    with pytest.raises(
        SourceError, match=f"Topic {topic} was deleted and created again"
    ) as refused:
        rows()
    assert refused.value.remedy == "topic-made-anew"
    if again == "more":
        # Spark alone continues in the middle of the new topic, and loses three records.
        got = run(kafka_records(spark, broker, topics=topic), tmp_path)
        assert sorted(row.value for row in got) == [b"new3", b"new4", b"old0", b"old1", b"old2"]
    (checkpoint / FILE).write_text("{")
    with pytest.raises(StateError, match="is damaged"):
        rows()


def test_a_query_whose_topic_is_recreated_while_it_runs_fails(
    spark: SparkSession, broker: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic, checkpoint = new_topic(broker, 1), tmp_path / "checkpoint"
    fill(broker, topic, "old0", "old1")

    def rows() -> Any:
        return kafka_records(spark, broker, topics=topic, checkpoint=checkpoint)

    # It looks for new records seldom enough not to see that the topic is gone.
    query = rows().writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
    query = query.trigger(processingTime="6 seconds").start(str(tmp_path / "out"))
    try:
        assert wait_until(lambda: len(query.recentProgress) > 0, 60)
        at = time.monotonic()
        delete_topic(broker, topic)
        make_topic(broker, topic, 1)
        fill(broker, topic, "new0", "new1", "new2")
        assert time.monotonic() - at < 5, "too slow to show anything"
        with caplog.at_level(logging.ERROR, "dedup"):
            assert wait_until(lambda: not query.isActive, 60)
    finally:
        query.stop()
    error = cause(query.exception())
    # The guard may have checked before the topic existed, and Spark itself as well.
    assert re.search("Topic .* (was deleted and created again|does not exist)", str(error)) or (
        query.exception() is not None and "has to end" not in caplog.text
    )
    with pytest.raises(SourceError, match="was deleted and created again"):
        rows()


def test_a_checkpoint_notes_only_the_topics_of_its_own_query(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    topic, other = new_topic(broker, 1), new_topic(broker, 1)
    fill(broker, topic, "a")
    fill(broker, other, "b")
    ours = tmp_path / "ours"
    run(kafka_records(spark, broker, topics=topic, checkpoint=ours / "checkpoint"), ours)
    run(kafka_records(spark, broker, topics=other), tmp_path / "theirs")
    noted = json.loads((ours / "checkpoint" / FILE).read_text())["topics"]
    assert list(noted) == [topic]

"""`kafka_records`: what comes of Kafka's records, on a real broker."""

from __future__ import annotations

import base64
import itertools
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import dedup
from dedup import dedup_by_id, kafka_records
from dedup.errors import ConfigError, DataError
from dedup.sources.files.json_text import NOT_STRICT
from dedup.sources.kafka import Decoder, Field, Header, Json, poison_counts, quarantined_records
from tests.kafka.records import make_topic, partitions_of, read_topic, send
from tests.kafka.source_query import failure, replay, roll_back, run, start, written

_numbers = itertools.count()
ORDERS = "id string NOT NULL, amount int, at struct<city: string NOT NULL, zip: int>"

#: Values that are not orders, each with its error.
POISON = {
    b'{"id": "a", "amount": "x"}': "Field amount does not fit int.",
    b"5": "It is JSON, but not an object.",
    b'"text"': "It is JSON, but not an object.",
    b'[{"id": "a"}]': "It is JSON, but not an object.",
    b"null": "It is JSON, but not an object.",
    b"": "It is empty.",
    b"  \n": "It is empty.",
    b'{"id": "a"': NOT_STRICT,
    b'{"id": "a"} trailing': NOT_STRICT,
    b'{"id": "a"}{"id": "b"}': NOT_STRICT,
    b'{"id": "a"}}{"id": "b"}': NOT_STRICT,
    b'{"id": "\xff\xfe"}': "It is not valid UTF-8.",
    b"\x00\x01\x02": NOT_STRICT,
    b'{"id": "a"},"_value":{"id": "b"}': NOT_STRICT,
    b'{"id": "a", "at": {"zip": 1, "zip": 2}}': NOT_STRICT,
    b'{"id": "x\\ud800"}': NOT_STRICT,
    b'{"id": "a", "other": ' + b"[" * 5_000 + b"]" * 5_000 + b"}": "It has more than 1,000 levels.",
    b'{"id": "a", "amount": 1e300000000}': "Field amount does not fit int.",
    b'{"id": "a", "amount": 99999999999}': "Field amount does not fit int.",
    b'{"id": "a", "at": {"city": {"x": 1}}, "amount": 1.5}': "Field amount does not fit int.",
    b'{"id": "a", "at": 5}': "Field at does not fit struct<city:string,zip:int>.",
    b'{"amount": 1}': "Field id is missing or null, and the schema needs it.",
    b'{"id": "a", "at": {"zip": 1}}': "Field at.city is missing or null, and the schema needs it.",
    b'{"id": null}': "Field id is missing or null, and the schema needs it.",
    b'\xef\xbb\xbf{"id": "a"}': NOT_STRICT,
}


@pytest.fixture
def topic(broker: str) -> str:
    """A new topic of two partitions."""
    return make_topic(broker, f"source-{next(_numbers)}", 2)


def order(name: str, **fields: Any) -> bytes:
    return json.dumps({"id": name, **fields}).encode()


def test_raw_records_have_the_columns_of_sparks_source_with_headers(
    spark: SparkSession, broker: str, topic: str, tmp_path: Path
) -> None:
    big = bytes(900_000)
    records: list[dict[str, Any]] = [
        {"key": b"k", "value": b"v", "headers": [("h", b"1"), ("n", None)], "timestamp": 5_000},
        {"key": None, "value": None},
        {"key": b"", "value": b"", "headers": [("h", b"")]},
        {"key": b"\xff", "value": big},
    ]
    send(broker, topic, [{"partition": 1, **one} for one in records])
    rows = kafka_records(spark, broker, topics=topic)
    assert rows.columns == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
    ]  # fmt: skip
    got = sorted(run(rows, tmp_path), key=lambda row: row.offset)
    assert [(row.key, row.value) for row in got] == [
        (b"k", b"v"), (None, None), (b"", b""), (b"\xff", big),
    ]  # fmt: skip
    assert [(h.key, h.value) for h in got[0].headers] == [("h", b"1"), ("n", None)]
    assert {(row.topic, row.partition) for row in got} == {(topic, 1)}
    millis = rows.sparkSession.createDataFrame(got[:1], rows.schema)
    assert millis.select(F.unix_millis("timestamp")).first() == (5_000,)


@pytest.mark.slow
def test_a_batch_reads_all_records_into_columns_of_chosen_names(
    spark: SparkSession, broker: str, topic: str
) -> None:
    send(
        broker, topic,
        [{"key": b"k", "value": order("a", amount=1, at={"city": "x"}), "partition": 0,
          "headers": [("id", b"1"), ("id", b"2")]},
         {"value": None, "partition": 0}],
    )  # fmt: skip
    names = {"topic": "source", "offset": "position", "record_id": "rid"}

    def rows(record_id: Any, **more: Any) -> list[Any]:
        found = kafka_records(
            spark, [broker], topics=[topic], value=Json(ORDERS), record_id=record_id,
            metadata=names, stream=False, **more,
        )  # fmt: skip
        assert found.columns == ["id", "amount", "at", "source", "position", "rid"]
        return sorted(found.collect(), key=lambda row: row.position)

    first, tombstone = rows("offset")
    assert (first.id, first.amount, first.at.city, first.source) == ("a", 1, "x", topic)
    assert [first.rid, tombstone.rid] == [f"{topic}-0-0", f"{topic}-0-1"]
    assert (tombstone.id, tombstone.amount, tombstone.at) == (None, None, None)
    assert [row.rid for row in rows("key")] == [b"k", None]
    assert [row.rid for row in rows(Header("id"))] == [b"2", None]
    assert [row.rid for row in rows(Field("at.city"))] == ["x", None]
    assert len(rows("offset", tombstones="drop")) == 1
    prefixed = kafka_records(
        spark, broker, topics=topic, value=Json("key string, topic int"), metadata="kafka_",
        record_id="key", stream=False,
    )  # fmt: skip
    assert prefixed.columns == [
        "key", "topic", "kafka_key", "kafka_topic", "kafka_partition", "kafka_offset",
        "kafka_timestamp", "kafka_timestampType", "kafka_headers", "kafka_record_id",
    ]  # fmt: skip


def test_records_of_aborted_transactions_are_not_read(
    spark: SparkSession, broker: str, topic: str
) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"aborted", partition=0)
    producer.flush()
    producer.abort_transaction(30)
    send(broker, topic, [(None, b"sent")])
    read = kafka_records(spark, broker, topics=topic, stream=False)
    assert [row.value for row in read.collect()] == [b"sent"]


def test_each_partition_has_its_own_clock(
    spark: SparkSession, broker: str, topic: str, tmp_path: Path
) -> None:
    # The second partition is hours behind the first; with one clock it would be late.
    early, late = 1_700_000_000_000, 1_700_050_000_000
    send(broker, topic, [
        {"value": order("a"), "partition": 0, "timestamp": late},
        {"value": order("b"), "partition": 1, "timestamp": early},
        {"value": order("a"), "partition": 0, "timestamp": late + 1},
        {"value": order("b"), "partition": 1, "timestamp": early + 1},
    ])  # fmt: skip
    rows = kafka_records(spark, broker, topics=topic, value=Json(ORDERS), record_id=Field("id"))
    operator = dedup_by_id(
        "record_id", horizon="1 hour", timestamp="timestamp", late="drop",
        source_partition=["topic", "partition"], catalog=str(tmp_path / "catalog"),
    )  # fmt: skip
    got = run(rows.transform(operator), tmp_path)
    assert sorted(row.id for row in got) == ["a", "b"]


@pytest.fixture
def poisoned(broker: str, topic: str) -> str:
    """The topic, with every poison record on partition 0, each followed by a good one on 1."""
    for number, value in enumerate(POISON):
        key = None if number % 2 else b"\xfe"
        headers = [("n", None), ("h", b"\x00\xff")]
        send(broker, topic, [{"value": value, "key": key, "partition": 0, "headers": headers}])
    send(broker, topic, [{"value": order(f"good{n}"), "partition": 1} for n in range(3)])
    send(broker, topic, [{"value": None, "partition": 1}, {"value": b"5", "partition": 1}])
    return topic


def test_poison_records_are_skipped_and_counted_by_partition(
    spark: SparkSession, broker: str, poisoned: str, tmp_path: Path
) -> None:
    rows = kafka_records(
        spark, broker, topics=poisoned, value=Json(ORDERS), on_error="skip", metrics="mine"
    )
    query = start(rows, tmp_path)
    assert query.awaitTermination(120)
    assert sorted(str(row.id) for row in written(rows, tmp_path)) == [
        "None", "good0", "good1", "good2",
    ]  # fmt: skip
    [progress] = [p for p in query.recentProgress if p["numInputRows"]]
    assert poison_counts(progress, "mine") == {poisoned: {0: len(POISON), 1: 1}}
    assert poison_counts(json.loads(progress.json), "mine") == poison_counts(progress, "mine")
    assert poison_counts(progress) == {}


def test_a_poison_record_stops_the_query_with_its_offset(
    spark: SparkSession, broker: str, topic: str, tmp_path: Path
) -> None:
    send(broker, topic, [{"value": order("a"), "partition": 1}] * 3)
    send(broker, topic, [{"value": b"{broken", "partition": 1}])
    error = failure(kafka_records(spark, broker, topics=topic, value=Json(ORDERS)), tmp_path)
    assert isinstance(error, DataError)
    assert error.remedy == "poison-records"
    assert f"at offset 3 of partition 1 of topic {topic}" in str(error)
    assert NOT_STRICT in str(error)


def test_replayed_micro_batches_quarantine_poison_records_only_once(
    spark: SparkSession, broker: str, poisoned: str, tmp_path: Path
) -> None:
    aside = tmp_path / "aside"

    def rows(**options: str) -> Any:
        return kafka_records(
            spark, broker, topics=poisoned, value=Json(ORDERS), on_error="quarantine",
            quarantine=aside, options=options,
        )  # fmt: skip

    run(rows(maxOffsetsPerTrigger="6"), tmp_path)
    files = {path: path.stat().st_mtime_ns for path in aside.rglob("*.json")}
    assert len(files) == len(POISON) + 1
    got = quarantined_records(spark, str(aside)).collect()
    by_place = {(row.partition, row.offset): row for row in got}
    assert len(got) == len(by_place) == len(POISON) + 1
    for offset, (value, cause) in enumerate(POISON.items()):
        row = by_place[0, offset]
        assert (row.topic, row.value, row.error) == (poisoned, value, cause)
        assert row.key == (None if offset % 2 else b"\xfe")
        assert [(h.key, h.value) for h in row.headers] == [("n", None), ("h", b"\x00\xff")]
        assert abs(row.timestamp.timestamp() - datetime.now(UTC).timestamp()) < 86_400
        assert row.timestampType == 0
    assert (by_place[1, 4].value, by_place[1, 4].headers) == (b"5", None)
    # Replayed, and read in other pieces: the same objects, untouched.
    replay(lambda: rows(minPartitions="7"), tmp_path)
    again = run(rows(minPartitions="5"), tmp_path / "other")
    assert len(again) == 4
    assert {p: p.stat().st_mtime_ns for p in aside.rglob("*.json")} == files


def test_keys_and_values_are_decoded_by_the_same_rules(
    spark: SparkSession, broker: str, topic: str, tmp_path: Path
) -> None:
    def pairs(data: bytes) -> dict[str, Any]:
        return {"id": data[:1].decode(), "amount": int(data[1:])}

    good = [(b'{"shop": 1}', b"a10"), (None, b"b20"), (b'{"shop": null}', None)]
    bad = {
        (b"5", b"c30"): "Key: It is JSON, but not an object.",
        (b'{"shop": 2}', b"dx"): "The function raised ValueError: invalid literal",
        (b"{}}", b"ex"): "The function raised ValueError: invalid literal",
    }
    send(broker, topic, [*good, *bad])
    given: dict[str, Any] = {"value": Decoder(pairs, "id string, amount int")}
    rows = kafka_records(
        spark, broker, topics=topic, key=Json("shop int"), metadata={"key": "at"},
        record_id="key", on_error="quarantine", quarantine=tmp_path / "aside", **given,
    )  # fmt: skip
    assert rows.schema.simpleString() == (
        "struct<id:string,amount:int,at:struct<shop:int>,record_id:binary>"
    )
    query = start(rows, tmp_path)
    assert query.awaitTermination(120)
    found = sorted(written(rows, tmp_path), key=str)
    assert [(row.id, row.amount, row.at and row.at.shop, row.record_id) for row in found] == [
        ("a", 10, 1, good[0][0]), ("b", 20, None, None), (None, None, None, good[2][0]),
    ]  # fmt: skip
    # Both parts of a poison record are stored, whichever is wrong.
    aside = quarantined_records(spark, str(tmp_path / "aside")).collect()
    causes = {(bytes(row.key), bytes(row.value)): row.error for row in aside}
    assert causes.keys() == bad.keys()
    assert all(cause.startswith(bad[record]) for record, cause in causes.items())
    assert sum(poison_counts(query.recentProgress[0])[topic].values()) == 3
    raw = kafka_records(
        spark, broker, topics=topic, key=Json("shop int"), on_error="skip", stream=False
    )
    # Nothing is known to be wrong with a raw value.
    values = [None if row.value is None else bytes(row.value) for row in raw.collect()]
    assert sorted(values, key=str) == [None, b"a10", b"b20", b"dx"]


@pytest.mark.slow
def test_a_stream_of_the_quarantine_writes_each_record_to_a_topic_once(
    spark: SparkSession, broker: str, poisoned: str, tmp_path: Path
) -> None:
    aside, dead = tmp_path / "aside", make_topic(broker, f"{poisoned}-dead")
    source = kafka_records(
        spark, broker, topics=poisoned, value=Json(ORDERS), on_error="quarantine", quarantine=aside
    )
    dedup.register(spark)
    letters = quarantined_records(spark, str(aside), stream=True)
    checkpoint = tmp_path / "dead" / "checkpoint"

    def publish() -> list[bytes | None]:
        writer = letters.select("key", "value", "headers").writeStream.format("dedup_kafka")
        writer = writer.option("kafka.bootstrap.servers", broker).option("topic", dead)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        assert query.start().awaitTermination(120)
        return sorted(record.value or b"" for record in read_topic(broker, dead))

    run(source, tmp_path)
    assert publish() == sorted([*POISON, b"5"])
    roll_back(tmp_path / "dead")
    replay(lambda: source, tmp_path)
    assert publish() == sorted([*POISON, b"5"])
    send(broker, poisoned, [{"value": b"more", "partition": 0}])
    run(source, tmp_path)
    assert publish() == sorted([*POISON, b"5", b"more"])


def test_a_quarantine_that_cannot_be_written_stops_the_query_before_it_starts(
    spark: SparkSession, broker: str, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        kafka_records(
            spark, broker, topics=topic, value=Json(ORDERS), on_error="quarantine",
            quarantine=tmp_path / "file",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topics": None}, "Give topics= or pattern="),
        ({"pattern": "x"}, "Give topics= or pattern="),
        ({"topics": "nowhere"}, "Topic nowhere does not exist"),
        ({"topics": "two words"}, "Topic 'two words': Broker: Invalid topic"),
        ({"topics": None, "pattern": ""}, "Give topics= or pattern="),
        ({"pattern": ""}, "Give topics= or pattern="),
        ({"topics": None, "pattern": "("}, "not a regular expression"),
        ({"options": {"failOnDataLoss": "false"}}, "failOnDataLoss cannot be false"),
        ({"options": {"startingOffsets": "latest"}}, "kafka_records sets it"),
        ({"value": "text"}, "is unknown"),
        ({"value": Json("id strin")}, "cannot be used: Unsupported data type"),
        ({"value": Json("id varchar(3)")}, "cannot be used: .*char/varchar"),
        ({"value": Json("id int", {"mode": "DROPMALFORMED"})}, "Option mode"),
        ({"value": Json("key string")}, "would both be named 'key'"),
        ({"value": Json("id int"), "record_id": Field("no")}, "names no field"),
        ({"record_id": Field("id")}, "none, because it is raw"),
        ({"record_id": "place"}, "is unknown"),
        ({"metadata": {"where": "x"}}, "metadata names 'where'"),
        ({"metadata": {"topic": "x", "offset": "x"}}, "would both be named 'x'"),
        ({"on_error": "ignore"}, "on_error='ignore' must be one of fail, skip, quarantine"),
        ({"value": Json("id int"), "on_error": "quarantine"}, "Give both or neither"),
        ({"value": Json("id int"), "quarantine": "x"}, "Give both or neither"),
        ({"tombstones": "emit"}, "tombstones='emit' must be one of keep, drop"),
        ({"start": "newest"}, "start='newest' is unknown"),
        ({"start": datetime(2024, 1, 1)}, "has no time zone"),
    ],
)
def test_options_that_cannot_work_are_rejected_on_the_driver(
    spark: SparkSession, broker: str, given: dict[str, Any], said: str
) -> None:
    if not partitions_of(broker, "refusals"):
        make_topic(broker, "refusals")
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        kafka_records(spark, broker, **{"topics": "refusals", **given})


def test_base64_of_any_length_is_binary_and_lost_bits_are_poison(
    spark: SparkSession, broker: str, topic: str
) -> None:
    """Spark itself breaks long base64 into lines."""
    whole = bytes(range(200))
    texts = [base64.b64encode(whole), base64.encodebytes(whole).replace(b"\n", b"\\r\\n"), b"YR=="]
    send(broker, topic, [{"value": b'{"id": "%s"}' % one, "partition": 0} for one in texts])
    rows = kafka_records(
        spark, broker, topics=topic, value=Json("id binary"), on_error="skip", stream=False
    )
    assert [bytes(row.id) for row in rows.collect()] == [whole, whole]

"""What brokers refuse at every attempt ends with an error that names the change to make."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from dedup.errors import ConfigError, DataError, DedupError
from dedup.sinks.batch import new_batch
from dedup.sinks.kafka.client_errors import is_fenced, permanent_error
from dedup.sinks.kafka.work import KafkaWork
from tests.kafka.broker import Broker
from tests.kafka.records import admin, make_topic
from tests.kafka.slots import QUERY, forget_slots, work_of
from tests.support.needs import long, some_long

ALICE = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.username": "alice",
    "kafka.sasl.password": Broker.USERS["alice"],
}
QUICK = {"kafka.topic.metadata.propagation.max.ms": "1000"}
HOUR_S = 3600
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def at(offset_s: int) -> pa.Array:
    micros = (int(time.time()) + offset_s) * 1_000_000
    return pa.array([micros], pa.int64()).view(pa.timestamp("us", "UTC"))


@pytest.fixture(scope="module")
def topics(broker: str) -> Iterator[str]:
    """Topics that take records, but not all; alice may not write to some, and sees one of them."""
    make_topic(broker, "any", 2)
    make_topic(broker, "any-markers", 1, cleanup_policy="compact")
    make_topic(broker, "only-keyed", 1, cleanup_policy="compact")
    make_topic(broker, "small", 1, max_message_bytes=1000)
    make_topic(broker, "recent", 1, message_timestamp_before_max_ms=HOUR_S * 1000)
    rules = []
    for topic, operation, kind in (
        ("denied", AclOperation.WRITE, AclPermissionType.DENY),
        ("read-only", AclOperation.READ, AclPermissionType.ALLOW),
    ):
        make_topic(broker, topic, 1)
        rules.append(
            AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:alice", "*",
                       operation, kind)
        )  # fmt: skip
    for made in admin(broker).create_acls(rules).values():
        made.result()
    yield broker
    forget_slots()


#: What is sent beside the value, the option ``topic``, the error and what it says to do.
REFUSED: dict[str, tuple[dict[str, Any], str | None, type[DedupError], str]] = {
    "too far in the future": (
        {"timestamp": lambda: at(2 * HOUR_S)}, "any", DataError, "message.timestamp.after.max.ms"),
    "too long ago": ({"timestamp": lambda: at(-2 * HOUR_S)}, "recent", DataError,
                     "message.timestamp.before.max.ms"),
    "no such topic": ({"topic": ["absent"]}, None, ConfigError, "Create the topic"),
    "no such topic given": (QUICK, "absent", ConfigError, "Create the topic"),
    "a topic's impossible name": ({"topic": ["a/b c"]}, None, DataError, "invalid topic name"),
    "a topic's reserved name": ({"topic": [".."]}, None, ConfigError, "column that names it"),
    "no such partition": ({"partition": pa.array([7], pa.int32())}, "any", ConfigError,
                          "give it more partitions"),
    "too large": ({"value": [b"x" * 5000]}, "small", DataError, "max.message.bytes of the topic"),
    "too large with headers": (
        {"headers": pa.array([[{"key": "k", "value": b"x" * 2_000_000}]], HEADERS)}, "any",
        DataError, "headers count, too"),
    "without a key": ({}, "only-keyed", DataError, "Give each record a key"),
    "not allowed": (ALICE, "denied", ConfigError, "Let the sink's user write there"),
    "not allowed to write": (ALICE, "read-only", ConfigError, "Topic authorization failed.*"
                             "Let the sink's user write there"),
    "not allowed by column": ({"topic": ["denied"], **ALICE}, None, ConfigError,
                              "Let the sink's user write there"),
}  # fmt: skip
#: The client waits for a topic that does not exist.
AT_ONCE = [case for case in REFUSED if "no such" not in case]


@pytest.mark.parametrize("mode", ["exactly-once", long("at-least-once")])
@pytest.mark.parametrize("case", some_long([*REFUSED], *AT_ONCE))
def test_an_error_that_every_attempt_meets_says_what_to_change(
    topics: str, broker_process: Broker, tmp_path: Path, mode: str, case: str
) -> None:
    given, topic, kind, advice = REFUSED[case]
    columns = {name: value() if callable(value) else value for name, value in given.items()
               if not name.startswith("kafka.")}  # fmt: skip
    options = {name: value for name, value in given.items() if name.startswith("kafka.")}
    address = broker_process.sasl_address if "kafka.sasl.username" in options else topics
    rows = pa.record_batch({"value": [b"v"], **columns})
    name = f"n{abs(hash((case, mode)))}"
    task = work_of(
        address, rows, topic=topic, mode=mode, markers="any-markers", name=name,
        staging=str(tmp_path), **options,
    )  # fmt: skip
    # Not the first micro-batch, which is staged.
    batch = new_batch(QUERY, name, "run", 1)
    if mode == "exactly-once":
        task.write(new_batch(QUERY, name, "run", 0), 0, [])
    for _ in range(2):
        with pytest.raises(kind, match=advice) as refused:
            _publish(task, batch, rows)
        assert "tart the query again" not in str(refused.value)
        assert "A record" in str(refused.value)


def _publish(task: KafkaWork, batch: Any, rows: pa.RecordBatch) -> None:
    task.complete([task.write(batch, 0, [rows])])


@pytest.mark.parametrize(
    ("names", "error", "fenced"),
    [
        ("POLICY_VIOLATION UNSUPPORTED_VERSION UNSUPPORTED_COMPRESSION_TYPE "
         "CLUSTER_AUTHORIZATION_FAILED SASL_AUTHENTICATION_FAILED", ConfigError, False),
        ("RECORD_LIST_TOO_LARGE", DataError, False),
        ("_TRANSPORT _TIMED_OUT _MSG_TIMED_OUT NOT_ENOUGH_REPLICAS REQUEST_TIMED_OUT "
         "NOT_LEADER_FOR_PARTITION CONCURRENT_TRANSACTIONS COORDINATOR_NOT_AVAILABLE _QUEUE_FULL",
         NoneType, False),
        ("_FENCED INVALID_PRODUCER_EPOCH UNKNOWN_PRODUCER_ID", NoneType, True),
    ],
)  # fmt: skip
def test_error_codes_are_classified_as_permanent_or_fenced(
    names: str, error: type, fenced: bool
) -> None:
    for name in names.split():
        code = KafkaError(getattr(KafkaError, name))
        assert type(permanent_error(code, "It was refused")) is error, name
        assert is_fenced(code) == fenced, name


@pytest.mark.parametrize("mode", ["exactly-once", long("at-least-once")])
def test_a_password_that_the_brokers_refuse_is_a_configuration_error(
    topics: str, broker_process: Broker, tmp_path: Path, mode: str
) -> None:
    rows = pa.record_batch({"value": [b"v"]})
    wrong = ALICE | {"kafka.sasl.password": "of old"}
    task = work_of(
        broker_process.sasl_address, rows, topic="any", mode=mode, markers="any-markers",
        staging=str(tmp_path), kafka_max_block_ms="3000", kafka_delivery_timeout_ms="3000", **wrong,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="correct its credentials") as refused:
        _publish(task, new_batch(QUERY, task.name, "run", 1), rows)
    assert "tart the query again" not in str(refused.value)

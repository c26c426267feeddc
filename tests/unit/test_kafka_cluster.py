"""Answers and errors of a cluster, from a client that is not connected."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from dedup.errors import ConfigError
from dedup.sources.kafka.client_options import client_settings
from dedup.sources.kafka.cluster import Cluster, Topic

pytestmark = pytest.mark.usefixtures("kafka_library")

TOPIC = Topic(name="t", partitions=2, replicas=1, id="1")


def cluster(**requests: Any) -> Cluster:
    """A cluster whose admin client answers these requests alone."""
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.max.block.ms": "300"}
    found = Cluster(client_settings(options | {"kafka.sasl.password": "s3cret"}))
    found._admin = SimpleNamespace(poll=lambda _: 0, **requests)
    return found


@pytest.mark.parametrize("code", ["_TRANSPORT", "_TIMED_OUT"])
def test_a_refused_connection_is_not_taken_for_silence(code: str) -> None:
    from confluent_kafka import KafkaError, KafkaException

    answer: Future[Any] = Future()
    answer.set_exception(KafkaException(KafkaError(getattr(KafkaError, code))))
    found = cluster(describe_cluster=lambda: answer)
    with pytest.raises(ConfigError, match=r"The cluster at 127\.0\.0\.1:1 does not answer\. Check"):
        found.broker_ids()
    found._errors.append(KafkaError(KafkaError._AUTHENTICATION, "wrong user"))
    with pytest.raises(ConfigError, match=r"does not answer \(wrong user\)\. Check"):
        found.broker_ids()


def test_an_error_in_listing_topics_gives_the_reason_without_secrets() -> None:
    from confluent_kafka import KafkaError, KafkaException

    def list_topics(timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "Not s3cret."))

    with pytest.raises(ConfigError, match=r"topics of 127.0.0.1:1: Not \*\*\*\.$"):
        cluster(list_topics=list_topics).topic_names()


@pytest.mark.parametrize("unstable", [1, 9999])
def test_offsets_of_an_open_transaction_are_requested_again(unstable: int) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError

    asked = []

    def answer(requests: list[Any], *, require_stable: bool = False) -> dict[str, Future[Any]]:
        asked.append(require_stable)
        is_open = require_stable and len(asked) <= unstable
        error = KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT) if is_open else None
        places = [
            SimpleNamespace(topic="t", partition=0, offset=4, error=None),
            SimpleNamespace(topic="t", partition=1, offset=5 if require_stable else 3, error=error),
        ]
        future: Future[Any] = Future()
        future.set_result(SimpleNamespace(topic_partitions=places))
        assert isinstance(requests[0], ConsumerGroupTopicPartitions)
        return {"g": future}

    found = cluster(list_consumer_group_offsets=answer)
    if unstable == 1:
        assert found.group_offsets("g", [TOPIC]) == {"t": {0: 4, 1: 5}}
        assert asked == [True, True]
    else:
        with pytest.raises(ConfigError, match=r"group g .* no transaction that commits its"):
            found.group_offsets("g", [TOPIC])

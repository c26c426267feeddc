"""What the driver checks on a real broker before a sink writes anything."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from dedup.errors import ConfigError
from dedup.sinks.kafka.preflight import MARKER_PARTITIONS, MARKER_SETTINGS, check_topics
from dedup.sources.kafka.client_options import ClientSettings, client_settings
from dedup.sources.kafka.cluster import Cluster
from tests.kafka.broker import Broker, free_port
from tests.kafka.proxy import Proxy
from tests.kafka.records import admin, make_topic, partitions_of

#: Forbids the user alice an operation on a resource of a kind and name.
Forbid = Callable[[ResourceType, str, AclOperation], None]


def settings(address: str, **given: str) -> ClientSettings:
    options = {f"kafka.{name.replace('_', '.')}": value for name, value in given.items()}
    return client_settings({"kafka.bootstrap.servers": address} | options)


def as_user(broker: Broker, secret: str = "alice-secret", **given: str) -> ClientSettings:
    login = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_username": "alice",
        "sasl_password": secret,
    }
    return settings(broker.sasl_address, **login, **given)


def refused(*arguments: object, **more: object) -> str:
    with pytest.raises(ConfigError) as found:
        check_topics(*arguments, **more)  # type: ignore[arg-type]
    return str(found.value)


def test_the_markers_topic_is_created_as_a_compacted_topic(
    broker: str, caplog: pytest.LogCaptureFixture
) -> None:
    make_topic(broker, "facts", partitions=3, min_insync_replicas=1, max_message_bytes=5000)
    make_topic(broker, "facts2")
    for _ in range(2):
        check_topics(settings(broker), ["facts", "facts2"], "facts-markers")
        assert not caplog.records
        assert partitions_of(broker, "facts-markers") == MARKER_PARTITIONS
    config = Cluster(settings(broker)).settings_of("topic", "facts-markers") or {}
    assert {name: config[name] for name in MARKER_SETTINGS} == MARKER_SETTINGS


def test_a_sink_without_transactions_needs_no_markers(broker: str) -> None:
    make_topic(broker, "plain")
    check_topics(settings(broker, acks="1"), ["plain"])
    assert partitions_of(broker, "plain-markers") == 0


def test_a_missing_topic_is_named_with_the_command_that_makes_it(broker: str) -> None:
    text = refused(settings(broker), ["nowhere"], "nowhere-markers")
    assert "Topic 'nowhere' does not exist" in text
    assert "kafka-topics.sh --bootstrap-server HOST:9092 --create --topic nowhere" in text
    assert partitions_of(broker, "nowhere-markers") == 0


def test_an_impossible_name_of_a_topic_is_refused(broker: str) -> None:
    assert "'no such name'" in refused(settings(broker), ["no such name"])


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_markers_that_would_be_deleted_are_refused(broker: str, policy: str) -> None:
    topic = make_topic(broker, f"markers-{len(policy)}", cleanup_policy=policy)
    text = refused(settings(broker), [], topic)
    assert f"has cleanup.policy={policy}" in text
    assert f"--entity-name {topic} --add-config cleanup.policy=compact" in text


def test_servers_that_do_not_answer_are_named(proxy: Proxy) -> None:
    proxy.refuse()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for address, wait_ms, cause in (
            (f"127.0.0.1:{free_port()}", "600", "refused"),
            ("no-such-host.invalid:9092", "1500", "resolve"),
            (f"127.0.0.1:{silent.getsockname()[1]}", "600", ""),
            (proxy.address, "600", ""),
        ):
            text = refused(settings(address, max_block_ms=wait_ms), ["t"])
            assert f"The cluster at {address} does not answer" in text
            assert cause in text


def test_wrong_credentials_are_reported_at_once(broker_process: Broker) -> None:
    began_s = time.monotonic()
    text = refused(as_user(broker_process, secret="wr0ng"), ["t"])
    assert time.monotonic() - began_s < 10
    assert f"The cluster at {broker_process.sasl_address} does not answer (" in text
    assert "Authentication failed" in text
    assert "the credentials and certificates (kafka.sasl.*, kafka.ssl.*)" in text
    assert "wr0ng" not in text


def test_a_mechanism_that_the_broker_lacks_is_reported(broker_process: Broker) -> None:
    given = as_user(broker_process)
    other = dict(given.properties) | {"sasl.mechanism": "SCRAM-SHA-512"}
    text = refused(ClientSettings(properties=other), ["t"])
    assert "SCRAM-SHA-512" in text


def test_a_listener_of_another_protocol_is_reported(broker_process: Broker) -> None:
    text = refused(settings(broker_process.sasl_address, max_block_ms="600"), ["t"])
    assert "kafka.security.protocol PLAINTEXT" in text
    tls = settings(broker_process.address, security_protocol="SSL", max_block_ms="1000")
    assert "kafka.security.protocol" in refused(tls, ["t"])


def test_unknown_client_properties_are_rejected_before_a_broker_is_contacted() -> None:
    text = refused(settings("127.0.0.1:9", linger_m="5"), ["t"])
    assert 'No such configuration property: "linger.m"' in text


def test_valid_credentials_pass_the_checks(
    broker_process: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    make_topic(broker_process.address, "ours")
    check_topics(as_user(broker_process), ["ours"], "ours-markers")
    assert not caplog.records


@pytest.fixture
def forbid(broker: str) -> Iterator[Forbid]:
    """Gives a function that forbids alice something; all is allowed again after the test."""

    def deny(kind: ResourceType, name: str, operation: AclOperation) -> None:
        bound = AclBinding(
            kind, name, ResourcePatternType.LITERAL, "User:alice", "*", operation,
            AclPermissionType.DENY,
        )  # fmt: skip
        # Where a rule names a resource, what no rule allows is forbidden.
        every = AclBinding(
            kind, name, ResourcePatternType.LITERAL, "User:alice", "*", AclOperation.ALL,
            AclPermissionType.ALLOW,
        )  # fmt: skip
        for future in admin(broker).create_acls([bound, every]).values():
            future.result(10)

    yield deny
    every = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY,
        AclPermissionType.ANY,
    )  # fmt: skip
    for future in admin(broker).delete_acls([every]).values():
        future.result(10)


def test_settings_that_the_user_may_not_read_are_reported(
    broker_process: Broker, forbid: Forbid, caplog: pytest.LogCaptureFixture
) -> None:
    address, user = broker_process.address, as_user(broker_process)
    make_topic(address, "noted", cleanup_policy="compact")
    forbid(ResourceType.TOPIC, "noted", AclOperation.DESCRIBE_CONFIGS)
    check_topics(user, ["noted"], "noted")
    assert "settings of topic 'noted'" in caplog.text


def test_a_user_who_may_not_create_the_markers_topic_gets_the_command(
    broker_process: Broker, forbid: Forbid
) -> None:
    forbid(ResourceType.BROKER, "kafka-cluster", AclOperation.CREATE)
    forbid(ResourceType.TOPIC, "unmade-markers", AclOperation.CREATE)
    text = refused(as_user(broker_process), [], "unmade-markers")
    assert "could not be created" in text
    assert "kafka-topics.sh" in text
    assert "--config cleanup.policy=compact" in text

"""Options of Spark's own Kafka sink become librdkafka's properties, or are refused by name."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

import dedup
from dedup.errors import ConfigError, MissingExtraError
from dedup.sources.kafka import OffsetsToGroup
from dedup.sources.kafka.client_options import RENAMED, ClientSettings, client_settings
from dedup.sources.kafka.clients import (
    admin_client,
    check_known,
    confluent,
    connection,
    consumer_config,
    producer_config,
    transactional_config,
)
from dedup.sources.kafka.cluster import Cluster

PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password='
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required "


def settings(**given: str) -> ClientSettings:
    options = {f"kafka.{name.replace('_', '.')}": value for name, value in given.items()}
    return client_settings({"kafka.bootstrap.servers": "h:9092"} | options)


def properties(**given: str) -> dict[str, str]:
    found = dict(settings(**given).properties)
    assert found.pop("bootstrap.servers") == "h:9092"
    return found


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"linger_ms": "5", "queue_buffering_max_messages": "7"},
         {"linger.ms": "5", "queue.buffering.max.messages": "7"}),
        ({"max_request_size": "2000000"}, {"message.max.bytes": "2000000"}),
        ({"buffer_memory": "33554433"}, {"queue.buffering.max.kbytes": "32769"}),
        ({"request_timeout_ms": "30000"}, {"socket.timeout.ms": "30000"}),
        ({"receive_buffer_bytes": "-1", "send_buffer_bytes": "9"},
         {"socket.receive.buffer.bytes": "0", "socket.send.buffer.bytes": "9"}),
        ({"request_required_acks": "all"}, {"acks": "all"}),
        ({"message_timeout_ms": "9"}, {"delivery.timeout.ms": "9"}),
        ({"ssl_endpoint_identification_algorithm": ""},
         {"ssl.endpoint.identification.algorithm": "none"}),
        ({"ssl_truststore_type": "pem", "ssl_truststore_location": "/ca.pem"},
         {"ssl.ca.location": "/ca.pem"}),
        ({"ssl_truststore_type": "PEM", "ssl_truststore_certificates": "-----"},
         {"ssl.ca.pem": "-----"}),
        ({"ssl_keystore_type": "PEM", "ssl_keystore_location": "/me.pem"},
         {"ssl.key.location": "/me.pem", "ssl.certificate.location": "/me.pem"}),
        ({"ssl_keystore_key": "K", "ssl_keystore_certificate_chain": "C"},
         {"ssl.key.pem": "K", "ssl.certificate.pem": "C"}),
        ({"ssl_keystore_location": "/me.p12", "ssl_keystore_password": "p"},
         {"ssl.keystore.location": "/me.p12", "ssl.keystore.password": "p"}),
        ({"sasl_mechanism": "PLAIN", "sasl_jaas_config": PLAIN + r'"a\"b c\\;";'},
         {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": r'a"b c\;'}),
        ({"sasl_mechanisms": "SCRAM-SHA-512",
          "sasl_jaas_config": SCRAM + "password='x' username=bob ;"},
         {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "bob", "sasl.password": "x"}),
    ],
)  # fmt: skip
def test_options_with_other_names_in_java_are_translated(
    given: dict[str, str], wanted: dict[str, str]
) -> None:
    assert properties(**given) == wanted


def test_case_does_not_matter_and_other_options_are_left_alone() -> None:
    given = {"Kafka.Bootstrap.Servers": " a:1, b:2 ", "KAFKA.client.ID": "me", "topic": "orders"}
    found = client_settings(given)
    assert dict(found.properties) == {"bootstrap.servers": "a:1, b:2", "client.id": "me"}
    assert found.servers == "a:1, b:2"


def test_the_longest_wait_is_javas_max_block() -> None:
    assert settings().block_ms == 60_000
    assert settings(max_block_ms="5").block_ms == 5
    assert properties(max_block_ms="5") == {}


@pytest.mark.parametrize("options", [{}, {"kafka.bootstrap.servers": " "}, {"topic": "t"}])
def test_missing_bootstrap_servers_are_rejected(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers is missing"):
        client_settings(options)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"linger_m": "5"}, 'No such configuration property: "linger.m"'),
        ({"zzzz": "5"}, 'No such configuration property: "zzzz"'),
        ({"interceptor_classes": "x"}, 'No such configuration property: "interceptor.classes"'),
        ({"error_cb": "5"}, 'No such configuration property: "error.cb"'),
        ({"key_serializer": "x"}, 'No such configuration property: "key.serializer"'),
        ({"partitioner_class": "x"}, 'No such configuration property: "partitioner.class"'),
        ({"partitioner_ignore_keys": "true"}, 'property: "partitioner.ignore.keys"'),
        ({"auto_offset_reset": "x"}, 'for configuration property "auto.offset.reset"'),
        ({"sasl_login_class": "x"}, 'No such configuration property: "sasl.login.class"'),
        ({"ssl_truststore_location": "t.jks"}, "Java TrustStores are not supported"),
        ({"ssl_truststore_type": "PEM"}, 'No such configuration property: "ssl.truststore.type"'),
        ({"ssl_truststore_type": "PKCS12", "ssl_truststore_location": "t.p12"},
         'No such configuration property: "ssl.truststore.type"'),
        ({"ssl_truststore_certificates": "---", "ssl_truststore_password": "s3cret"},
         'No such configuration property: "ssl.truststore.password"'),
        ({"ssl_keystore_type": "PEM"}, 'No such configuration property: "ssl.keystore.type"'),
        ({"ssl_keystore_type": "JKS", "ssl_keystore_location": "k.jks"},
         'No such configuration property: "ssl.keystore.type"'),
        ({"sasl_jaas_config": "com.sun.security.auth.module.Krb5LoginModule required;"},
         "Java JAAS configuration is not supported"),
        ({"sasl_jaas_config": "a.b.OAuthBearerLoginModule required clientId='x';"},
         "Java JAAS configuration is not supported"),
        ({"sasl_jaas_config": SCRAM + 'username="u";'}, "Java JAAS configuration is not supported"),
        ({"sasl_jaas_config": PLAIN + '"s3cret" tokenauth="true";'},
         "Java JAAS configuration is not supported"),
        ({"sasl_jaas_config": PLAIN + '"p";', "security_protocol": "SASL_PLAINTEXT"}, "GSSAPI"),
        ({"linger_ms": "soon"}, 'configuration property "queue.buffering.max.ms"'),
        ({"buffer_memory": "0"}, '"queue.buffering.max.kbytes" value 0'),
        ({"max_in_flight": "9"}, "librdkafka rejects the options"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}, "sasl.username and"),
        # What would break the guarantee, or lose records.
        ({"partitioner": "random"}, "Option kafka.partitioner cannot be used: the sink chooses"),
        ({"transactional_id": "x"}, "Option kafka.transactional.id cannot be used: the sink"),
        ({"enable_auto_commit": "true"}, "Option kafka.enable.auto.commit cannot be used: the"),
        ({"buffer_memory": "32m"}, "Option kafka.buffer.memory must be an integer"),
        ({"max_block_ms": "1 minute"}, "Option kafka.max.block.ms must be an integer"),
        ({"acks": "1"}, "kafka.acks=1 lets the broker lose"),
        ({"request_required_acks": "0"}, "kafka.acks=0 lets the broker lose"),
        ({"enable_idempotence": "false"}, '"at-least-once"'),
        ({"delivery_timeout_ms": "120000"}, "at most kafka.transaction.timeout.ms=60000"),
        ({"delivery_timeout_ms": "0"}, "at most"),
        ({"transaction_timeout_ms": "soon"}, "must be an integer"),
        # What may hold a secret.
        ({"security_protocol": "s3cret", "sasl_password": "s3cret"}, '"security.protocol"'),
        ({"security_protocol": "SSL", "ssl_key_pem": "s3cret", "ssl_certificate_pem": "s3cret"},
         "ssl.certificate.pem failed"),
        ({"sasl_jaas_config": 'a.OddModule required password="s3cret";'}, "Java JAAS"),
        ({"sasl_jaas_config": 's3cret password="s3cret'}, "Java JAAS"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("kafka_library")
def test_invalid_options_are_rejected_by_name_without_secrets(
    given: dict[str, str], text: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check_known(settings(**given))
    assert text in str(refused.value)
    assert "s3cret" not in str(refused.value)


@pytest.mark.usefixtures("kafka_library")
def test_a_store_that_only_java_reads_is_refused_by_every_client() -> None:
    options = {"kafka.ssl.truststore.location": "t.jks"}
    given = client_settings(options | {"kafka.bootstrap.servers": "h:1"})
    text = "librdkafka rejects the options kafka.*Java TrustStores are not supported"
    for build in (
        lambda: admin_client(given),
        lambda: Cluster(given),
        lambda: OffsetsToGroup("h:1", "g", options=options),
    ):
        with pytest.raises(ConfigError, match=text):
            build()


@pytest.mark.usefixtures("kafka_library")
def test_options_that_need_a_python_callable_are_rejected() -> None:
    options = {"kafka.bootstrap.servers": "h:1", "kafka.error_cb": "print"}
    with pytest.raises(ConfigError, match="expected error_cb property as a callable"):
        check_known(client_settings(options))


@pytest.mark.usefixtures("kafka_library")
def test_good_settings_are_known_to_librdkafka() -> None:
    check_known(settings(max_request_size="2000000", compression_type="zstd", retries="9"))
    check_known(settings(acks="1", delivery_timeout_ms="90000"), transactional=False)


def test_no_repr_shows_a_secret() -> None:
    assert "s3cret" not in repr(settings(sasl_password="s3cret", sasl_username="u"))


def test_a_transactional_producer_gets_all_its_settings() -> None:
    given = settings(acks="-1", linger_ms="9", transaction_timeout_ms="90000")
    assert transactional_config(given, "me") == {
        "bootstrap.servers": "h:9092", "acks": "all", "enable.idempotence": "true",
        "linger.ms": "9", "partitioner": "murmur2_random", "retry.backoff.ms": "250",
        "transactional.id": "me", "transaction.timeout.ms": "90000",
        "reconnect.backoff.ms": "20", "allow.auto.create.topics": "false",
    }  # fmt: skip
    assert (
        transactional_config(settings(reconnect_backoff_ms="70"), "me")["reconnect.backoff.ms"]
        == "70"
    )


@pytest.mark.usefixtures("kafka_library")
def test_a_request_is_repeated_no_sooner_than_the_user_says() -> None:
    assert settings(retry_backoff_ms="40").retry_backoff_ms == 40
    assert settings(retry_backoff_max_ms="90").retry_backoff_ms == 90
    check_known(settings(retry_backoff_max_ms="90"))


def test_other_producers_are_idempotent_unless_options_say_otherwise() -> None:
    assert producer_config(settings())["enable.idempotence"] == "true"
    assert producer_config(settings(enable_idempotence="false"))["enable.idempotence"] == "false"
    weak = producer_config(settings(acks="1"))
    assert weak["acks"] == "1"
    assert "enable.idempotence" not in weak


@pytest.mark.usefixtures("kafka_library")
def test_consumers_get_connection_options_and_no_producer_options() -> None:
    given = settings(acks="all", linger_ms="9", sasl_password="p", client_id="me")
    assert connection(given) == {
        "bootstrap.servers": "h:9092", "sasl.password": "p", "client.id": "me"
    }  # fmt: skip
    found = consumer_config(given, group="g")
    assert found["isolation.level"] == "read_committed"
    assert found["enable.auto.commit"] is False
    assert "acks" not in found
    assert consumer_config(given, committed=False)["isolation.level"] == "read_uncommitted"
    confluent().Consumer(found | {"log_level": 0}).close()


def test_settings_travel_to_the_workers() -> None:
    given = settings(sasl_password="p")
    assert pickle.loads(pickle.dumps(given)) == given


def test_a_missing_client_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(MissingExtraError, match="'kafka'"):
        confluent()


def test_the_page_lists_renamed_options() -> None:
    page = (Path(dedup.__file__).parent / "sources/kafka/README.md").read_text()
    names = ("max.request.size", "buffer.memory", "request.timeout.ms", "send.buffer.bytes")
    for name in (*names, "receive.buffer.bytes"):
        assert f"`{name}`" in page
        assert f"`{RENAMED[name]}`" in page

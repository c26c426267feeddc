"""Configures all producers, consumers and admin clients of Kafka."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from dedup.errors import ConfigError
from dedup.errors.lazy import library
from dedup.sources.kafka.client_options import ClientSettings, check_transactional

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

#: Properties that every kind of client knows. librdkafka warns of any other property in its log.
_CONNECTION = (
    "bootstrap.", "broker.", "client.", "connections.", "debug", "enable.metrics.", "enable.ssl.",
    "enable.sasl.", "log", "metadata.", "message.max.", "receive.message.", "reconnect.",
    "resolve.", "sasl.", "security.", "socket.", "ssl.", "topic.metadata.",
)  # fmt: skip
#: Wait before librdkafka connects again. A new producer needs two connections, and librdkafka waits
#: half of this time between them.
RECONNECT_MS = "20"
#: The Java client's rule, so that producers of Java and librdkafka send a key to one partition.
_PARTITIONER = "murmur2_random"


def confluent(purpose: str = "Writing to Kafka") -> ModuleType:
    """Return the module of confluent-kafka, or raise MissingExtraError if it is not installed."""
    return library("kafka", purpose, "confluent_kafka", "confluent_kafka.admin")


def connection(settings: ClientSettings) -> dict[str, Any]:
    """Return the properties of the connection, without the properties of producers."""
    return {n: v for n, v in settings.properties.items() if n.startswith(_CONNECTION)}


def producer_config(settings: ClientSettings) -> dict[str, Any]:
    """Return the properties of a producer without transactions.

    As in the Java client, the producer's retries repeat no record, unless the user switched
    idempotence off or asked for weaker acknowledgements.
    """
    properties = dict(settings.properties)
    weak = properties.get("acks", "all").lower() not in ("all", "-1")
    defaults = {"partitioner": _PARTITIONER} | (
        {} if weak else {"enable.idempotence": "true", "acks": "all"}
    )
    return defaults | properties


def transactional_config(settings: ClientSettings, transactional_id: str) -> dict[str, Any]:
    """Check the settings, and return the properties of a producer that commits transactions.

    The next producer that initialises the same transactional ID fences this producer (KIP-98).
    """
    check_transactional(settings)
    own = {
        "acks": "all",
        "enable.idempotence": "true",
        "partitioner": _PARTITIONER,
        "retry.backoff.ms": str(settings.retry_backoff_ms),
        "transactional.id": transactional_id,
        "transaction.timeout.ms": str(settings.transaction_timeout_ms),
    }
    defaults = {"reconnect.backoff.ms": RECONNECT_MS, "allow.auto.create.topics": "false"}
    return defaults | dict(settings.properties) | own


def consumer_config(
    settings: ClientSettings, *, group: str = "dedup", committed: bool = True
) -> dict[str, Any]:
    """Return the properties of a consumer to which we assign partitions, and which commits nothing.

    librdkafka needs the name of a group, but the consumer does not join the group. With `committed`
    the consumer reads only committed records, up to the first open transaction.
    """
    return connection(settings) | {
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "allow.auto.create.topics": False,
        "isolation.level": "read_committed" if committed else "read_uncommitted",
    }


def admin_client(
    settings: ClientSettings, *, purpose: str = "Writing to Kafka", **more: Any
) -> AdminClient:
    """Return an admin client. It connects on its first request, and also has `more` properties."""
    library = confluent(purpose)
    # A request about a missing topic of markers must not create it with the broker's defaults,
    # under which Kafka deletes old records.
    config = connection(settings) | {"allow.auto.create.topics": "false"} | more
    try:
        client: AdminClient = library.admin.AdminClient(config)
    except library.KafkaException as error:
        raise _rejected(settings, error.args[0].str()) from None
    return client


def check_known(settings: ClientSettings, *, transactional: bool = True) -> None:
    """Let librdkafka check the settings, without a connection."""
    library = confluent()
    config = transactional_config(settings, "check") if transactional else producer_config(settings)
    del config["bootstrap.servers"]
    try:
        # librdkafka would report missing servers on the error stream.
        library.Producer({"log_level": "0"} | config)
    except library.KafkaException as error:
        raise _rejected(settings, error.args[0].str()) from None
    except (TypeError, ValueError) as error:
        raise _rejected(settings, str(error)) from None


def _rejected(settings: ClientSettings, problem: str) -> ConfigError:
    reason = settings.without_secrets(problem.strip().rstrip("."))
    return ConfigError(
        f"librdkafka rejects the options kafka.*: {reason}. Its CONFIGURATION.md lists all names. "
        "The README of dedup/sources/kafka shows what replaces names, stores and login modules of "
        "Java's client."
    )


def is_passing(error: Any) -> bool:
    """Return whether a request may succeed when it is repeated.

    Brokers may not know a new topic, leader or coordinator yet. The admin client does not call all
    of these errors retriable.
    """
    codes = confluent().KafkaError
    return error.retriable() or error.code() in (
        codes.NOT_LEADER_FOR_PARTITION, codes.LEADER_NOT_AVAILABLE, codes.UNKNOWN_TOPIC_OR_PART,
        codes.FENCED_LEADER_EPOCH, codes.UNKNOWN_LEADER_EPOCH, codes.REPLICA_NOT_AVAILABLE,
        codes.COORDINATOR_LOAD_IN_PROGRESS, codes.COORDINATOR_NOT_AVAILABLE, codes.NOT_COORDINATOR,
        codes.UNSTABLE_OFFSET_COMMIT,
    )  # fmt: skip

"""The one place that says how producers, consumers and admin clients are set up."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from dedup.errors import ConfigError, MissingExtraError
from dedup.sources.kafka.client_options import ClientSettings, check_transactional

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

#: What a client of any kind understands; the rest would draw a warning in each log.
_CONNECTION = (
    "bootstrap.", "broker.", "client.", "connections.", "debug", "enable.metrics.", "enable.ssl.",
    "enable.sasl.", "log", "metadata.", "message.max.", "receive.message.", "reconnect.",
    "resolve.", "sasl.", "security.", "socket.", "ssl.", "topic.metadata.",
)  # fmt: skip
#: librdkafka waits half of it between its first two connections, which a new producer needs.
RECONNECT_MS = "20"
#: Java's rule for keys: the same key goes to the same partition, whoever writes it.
_PARTITIONER = "murmur2_random"


def confluent(purpose: str = "Writing to Kafka") -> ModuleType:
    """Return the client library.

    Raises
    ------
    MissingExtraError
        If it is not installed.
    """
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError:
        raise MissingExtraError("kafka", purpose) from None
    return confluent_kafka


def connection(settings: ClientSettings) -> dict[str, Any]:
    """Return what reaches the cluster, and nothing that only producers or consumers know."""
    return {n: v for n, v in settings.properties.items() if n.startswith(_CONNECTION)}


def producer_config(settings: ClientSettings) -> dict[str, Any]:
    """Return the settings of a producer without transactions.

    Retries repeat nothing, as with the Java client, unless the user switched that off or asked for
    weaker acknowledgements.
    """
    given = dict(settings.properties)
    weak = given.get("acks", "all").lower() not in ("all", "-1")
    defaults = {"partitioner": _PARTITIONER} | (
        {} if weak else {"enable.idempotence": "true", "acks": "all"}
    )
    return defaults | given


def transactional_config(
    settings: ClientSettings, transactional_id: str, timeout_ms: int | None = None
) -> dict[str, Any]:
    """Return the settings of a producer that commits transactions.

    Parameters
    ----------
    settings : ClientSettings
    transactional_id : str
        Whoever initialises it next fences this producer (KIP-98).
    timeout_ms : int, optional
        After how long the broker aborts a transaction. Default: the option's, else a minute.

    Raises
    ------
    ConfigError
        As `check_transactional`.
    """
    check_transactional(settings)
    own = {
        "acks": "all",
        "enable.idempotence": "true",
        "partitioner": _PARTITIONER,
        "retry.backoff.ms": str(settings.retry_backoff_ms),
        "transactional.id": transactional_id,
        "transaction.timeout.ms": str(timeout_ms or settings.transaction_timeout_ms),
    }
    defaults = {"reconnect.backoff.ms": RECONNECT_MS, "allow.auto.create.topics": "false"}
    return defaults | dict(settings.properties) | own


def consumer_config(
    settings: ClientSettings, *, group: str = "dedup", committed: bool = True
) -> dict[str, Any]:
    """Return the settings of a consumer that is assigned its partitions and commits no offsets.

    Parameters
    ----------
    settings : ClientSettings
    group : str
        librdkafka wants a name; no group is joined under it.
    committed : bool
        Whether it passes over what was aborted, and stops at what is open (``read_committed``).
    """
    return connection(settings) | {
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "allow.auto.create.topics": False,
        "isolation.level": "read_committed" if committed else "read_uncommitted",
    }


def admin_client(settings: ClientSettings, *, purpose: str = "Writing to Kafka") -> AdminClient:
    """Return an admin client; it connects when it is first asked."""
    # To look at a topic of markers that is gone must not make one that Kafka deletes from.
    config = connection(settings) | {"allow.auto.create.topics": "false"}
    client: AdminClient = confluent(purpose).admin.AdminClient(config)
    return client


def check_known(settings: ClientSettings, *, transactional: bool = True) -> None:
    """Let librdkafka read the settings, without a connection.

    Raises
    ------
    ConfigError
        If it does not know a name or cannot use a value; with the option as the user knows it, the
        reason, and no secret.
    MissingExtraError
        If confluent-kafka is not installed.
    """
    config = transactional_config(settings, "check") if transactional else producer_config(settings)
    del config["bootstrap.servers"]
    problem = _problem(config)
    if problem is None:
        return
    for name, value in settings.properties.items():
        alone = _problem({name: value}) if name in config else None
        if alone is not None and "No such configuration property" in alone:
            raise ConfigError(
                f"Option {settings.option(name)} is unknown to librdkafka. Its CONFIGURATION.md "
                "lists what it knows; leave out what only Java's client knows."
            )
        if alone is not None and not alone.startswith("Failed to create"):
            reason = settings.without_secrets(alone)
            raise ConfigError(f"Option {settings.option(name)} cannot be used: {reason}.")
    raise ConfigError(
        "The options kafka.* do not go together, says librdkafka: "
        f"{settings.without_secrets(problem.removeprefix('Failed to create producer: '))}."
    )


def _problem(config: dict[str, Any]) -> str | None:
    """Return why librdkafka refuses these properties, None where it does not."""
    library = confluent()
    # It would complain on the error stream that it knows no server.
    quiet = {"log_level": "0"} | config
    try:
        library.Producer(quiet)
    except library.KafkaException as error:
        return str(error.args[0].str()).strip().rstrip(".")
    except (TypeError, ValueError) as error:
        return str(error).strip().rstrip(".")
    return None


def is_passing(error: Any) -> bool:
    """Return whether a question about a topic may be answered when it is asked again.

    A topic that was made a moment ago, or whose leader moves, is answered for by brokers that do
    not know it yet; the admin client does not call all these errors retriable.
    """
    codes = confluent().KafkaError
    return error.retriable() or error.code() in (
        codes.NOT_LEADER_FOR_PARTITION, codes.LEADER_NOT_AVAILABLE, codes.UNKNOWN_TOPIC_OR_PART,
        codes.FENCED_LEADER_EPOCH, codes.UNKNOWN_LEADER_EPOCH, codes.REPLICA_NOT_AVAILABLE,
    )  # fmt: skip

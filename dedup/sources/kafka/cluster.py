"""What a cluster says of itself: whether it answers, its topics, their settings, their offsets.

Every question ends with an answer, with None where the user may not ask it, or with an error that
tells a silent broker from credentials that it refuses.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass
from typing import Any, TypeVar

from dedup.errors import ConfigError
from dedup.sources.kafka.client_options import ClientSettings
from dedup.sources.kafka.clients import confluent, connection, is_passing

T = TypeVar("T")
#: How long a broker may take to answer before it counts as unreachable.
REACH_MS = 15_000
_POLL_S = 0.05


def timeout_s(settings: ClientSettings) -> float:
    """Return the longest wait for an answer, in seconds."""
    return min(settings.block_ms, REACH_MS) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """What is known of a topic.

    Parameters
    ----------
    name : str
    partitions : int
    replicas : int
        Copies of the partition that has the fewest.
    allowed : frozenset of str, or None
        What the user may do with it, such as ``WRITE``; None where the broker does not tell.
    """

    name: str
    partitions: int
    replicas: int
    allowed: frozenset[str] | None


class Cluster:
    """A cluster that is asked about itself; it connects with the first question.

    Parameters
    ----------
    settings : ClientSettings
    purpose : str
        What needs the client library, for the error where it is missing.
    """

    def __init__(self, settings: ClientSettings, *, purpose: str = "Writing to Kafka") -> None:
        self.settings = settings
        self._library = confluent(purpose)
        self._errors: list[Any] = []
        config = connection(settings) | {"error_cb": self._errors.append, "log_level": 0}
        try:
            self._admin = self._library.admin.AdminClient(config)
        except self._library.KafkaException as error:
            raise ConfigError(
                "The options kafka.* do not go together, says librdkafka: "
                f"{self._text(error.args[0])}."
            ) from None
        self._timeout_s = timeout_s(settings)

    def broker_ids(self) -> list[int]:
        """Return the IDs of the brokers that are up.

        Raises
        ------
        ConfigError
            If none of the servers answers, or they refuse the credentials.
        """
        return [node.id for node in self._answer(self._admin.describe_cluster()).nodes]

    def topic(self, name: str) -> Topic | None:
        """Return a topic, None where there is none or the user may not know of it.

        Raises
        ------
        ConfigError
            If the broker refuses the name, or does not answer.
        """
        library = self._library
        asked = self._admin.describe_topics(
            library.TopicCollection([name]), include_authorized_operations=True
        )
        try:
            found = self._answer(asked[name])
        except library.KafkaException as error:
            code = error.args[0].code()
            if code == library.KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            if code == library.KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise ConfigError(
                    f"The broker does not let this user see topic {name!r}: {may(name, 'DESCRIBE')}"
                ) from None
            raise ConfigError(f"Topic {name!r}: {self._text(error.args[0])}.") from None
        allowed = found.authorized_operations
        return Topic(
            name=name,
            partitions=len(found.partitions),
            replicas=min(len(partition.replicas) for partition in found.partitions),
            allowed=frozenset(operation.name for operation in allowed) if allowed else None,
        )

    def topic_settings(self, name: str) -> Mapping[str, str] | None:
        """Return a topic's settings, None where the user may not read them."""
        return self._settings(self._library.admin.ResourceType.TOPIC, name)

    def broker_settings(self, broker_id: int) -> Mapping[str, str] | None:
        """Return a broker's settings, None where the user may not read them."""
        return self._settings(self._library.admin.ResourceType.BROKER, str(broker_id))

    def make_topic(
        self, name: str, *, partitions: int, replicas: int, settings: Mapping[str, str]
    ) -> str | None:
        """Make a topic, unless somebody else has; return why not, where the broker refuses."""
        topic = self._library.admin.NewTopic(
            name, num_partitions=partitions, replication_factor=replicas, config=dict(settings)
        )
        try:
            self._answer(self._admin.create_topics([topic])[name])
        except self._library.KafkaException as error:
            if error.args[0].code() != self._library.KafkaError.TOPIC_ALREADY_EXISTS:
                return self._text(error.args[0])
        deadline = time.monotonic() + self._timeout_s
        while self.topic(name) is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return None

    def ends(self, topic: Topic, *, committed: bool) -> dict[int, int]:
        """Return where each partition ends: for readers of committed records, or for all.

        The first is the last stable offset, which stands before the first open transaction.

        Raises
        ------
        ConfigError
            If the broker refuses the question.
        """
        library = self._library
        level = library.IsolationLevel
        places = [library.TopicPartition(topic.name, n) for n in range(topic.partitions)]
        latest = {place: library.admin.OffsetSpec.latest() for place in places}
        chosen = level.READ_COMMITTED if committed else level.READ_UNCOMMITTED
        deadline = time.monotonic() + self._timeout_s
        while True:
            asked = self._admin.list_offsets(latest, isolation_level=chosen)
            try:
                return {place.partition: self._answer(asked[place]).offset for place in places}
            except library.KafkaException as error:
                if not is_passing(error.args[0]) or time.monotonic() > deadline:
                    why = self._text(error.args[0])
                    raise ConfigError(f"Topic {topic.name!r}: {why}.") from None
            time.sleep(_POLL_S)

    def _settings(self, kind: Any, name: str) -> Mapping[str, str] | None:
        resource = self._library.admin.ConfigResource(kind, name)
        try:
            found = self._answer(self._admin.describe_configs([resource])[resource])
        except self._library.KafkaException:
            return None
        return {entry.name: entry.value or "" for entry in found.values()}

    def _answer(self, future: Future[T]) -> T:
        """Return an answer; raises KafkaException where it is a refusal of the question itself."""
        codes = self._library.KafkaError
        deadline = time.monotonic() + self._timeout_s
        while True:
            self._admin.poll(0)
            refused = [e for e in self._errors if e.code() in (codes._AUTHENTICATION, codes._SSL)]
            if refused:
                raise self._refused(refused[0])
            try:
                return future.result(timeout=_POLL_S)
            except Late:
                if time.monotonic() > deadline:
                    raise self._silent() from None
            except self._library.KafkaException as error:
                if error.args[0].code() in (codes._TIMED_OUT, codes._TRANSPORT):
                    raise self._silent() from None
                raise

    def _refused(self, error: Any) -> ConfigError:
        what, way_out = (
            ("refuses the credentials", "Check kafka.sasl.mechanism, its user name and password")
            if error.code() == self._library.KafkaError._AUTHENTICATION
            else ("and this machine do not agree on TLS", "Check kafka.ssl.* and the certificates")
        )
        return ConfigError(
            f"The cluster at {self.settings.servers} {what}: {self._text(error)}. {way_out}, and "
            "that kafka.security.protocol is the listener's."
        )

    def _silent(self) -> ConfigError:
        codes = self._library.KafkaError
        heard = [e for e in self._errors if e.code() != codes._ALL_BROKERS_DOWN]
        last = f" (the last try: {self._text(heard[-1])})" if heard else ""
        protocol = self.settings.properties.get("security.protocol", "PLAINTEXT")
        return ConfigError(
            f"None of the servers {self.settings.servers} answered within {self._timeout_s:.0f} s"
            f"{last}. Check kafka.bootstrap.servers, that this machine reaches the addresses that "
            f"the brokers advertise, and that their listener is of kafka.security.protocol "
            f"{protocol}."
        )

    def _text(self, error: Any) -> str:
        return self.settings.without_secrets(str(error.str()).strip().rstrip("."))


def may(topic: str, *operations: str) -> str:
    """Return the command that lets a user do something with a topic."""
    wanted = " ".join(f"--operation {operation.title()}" for operation in operations)
    return (
        "kafka-acls.sh --bootstrap-server HOST:9092 --add --allow-principal User:NAME "
        f"{wanted} --topic {topic}"
    )


def missing_rights(topic: Topic, wanted: Iterable[str]) -> list[str]:
    """Return what the user may not do with a topic of what is wanted, as far as is known."""
    return [] if topic.allowed is None else [o for o in wanted if o not in topic.allowed]
